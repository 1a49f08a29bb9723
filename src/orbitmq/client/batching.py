"""Many messages as few requests: cut into batches, several under way at once, receipts in the order given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple

from orbitmq.client.core.batches import Gathering, Limits, cut, cut_even
from orbitmq.client.core.retry_rules import SendKind
from orbitmq.client.delivery import Delivery
from orbitmq.client.errors import BadRequest, OrbitMQError
from orbitmq.client.fast_send import PLAIN_ENTRY_BYTES, FrameMaker, encode_entries, encode_plain
from orbitmq.client.outgoing import Out, check_body, property_text
from orbitmq.client.receipt import IdRun, Receipt
from orbitmq.client.topic_desk import Slot, TopicDesk
from orbitmq.wire.topics import RETRY_PREFIX

# Enough to keep a broker busy while answers travel; each holds its batch in memory until it is stored.
UNDER_WAY: Final = 8


class Entry(NamedTuple):
    """A checked message of a batch; `more` is its property text behind the unique id."""

    body: bytes
    more: bytes
    slot: Slot | None


class PartlySent(OrbitMQError):
    """Some of many messages were not stored. `receipts` has None in their places, `errors` says why."""

    def __init__(self, receipts: list[Receipt | None], errors: list[OrbitMQError]) -> None:
        lost = sum(receipt is None for receipt in receipts)
        super().__init__(
            f"{lost} of {len(receipts)} messages were not stored: {errors[0]}",
            hint=errors[0].hint,
            code=errors[0].code,
            retryable=all(error.retryable for error in errors),
        )
        self.receipts = receipts
        self.errors = errors


class Batcher:
    """Sends batches of one producer. The limits are of the encoded messages, not of their bodies alone."""

    def __init__(self, delivery: Delivery, limits: Limits) -> None:
        self._delivery = delivery
        self._ids = delivery.client.ids
        self.limits = limits

    async def send_all(
        self, desk: TopicDesk, messages: Sequence[bytes | Out], timeout_s: float
    ) -> list[Receipt]:
        """One receipt per message. Messages of one batch lie behind each other in one queue.

        Messages with an order key keep their order: their batches follow each other, without retries.
        """
        if desk.topic.startswith(RETRY_PREFIX):
            raise BadRequest("batches cannot go to a retry topic", hint="send these messages one by one")
        if set(map(type, messages)) == {bytes} and b"" not in messages:
            return await self._send_plain(desk, messages, timeout_s)  # type: ignore[arg-type]
        return await self._send_entries(desk, [entry_of(desk, message) for message in messages], timeout_s)

    async def _send_plain(self, desk: TopicDesk, bodies: Sequence[bytes], timeout_s: float) -> list[Receipt]:
        check_body(max(bodies, key=len))
        async with _Window(len(bodies)) as window:
            start = 0
            while start < len(bodies):
                stop = cut_even(bodies, start, PLAIN_ENTRY_BYTES, self.limits)
                await window.room()
                stamp, first = self._ids.reserve(stop - start)
                body = encode_plain(bodies[start:stop], stamp, first)
                work = self._send_run(desk, None, body, IdRun(stamp, first), stop - start, timeout_s)
                window.start(range(start, stop), work)
                start = stop
            return await window.finish()

    async def _send_entries(
        self, desk: TopicDesk, entries: Sequence[Entry], timeout_s: float
    ) -> list[Receipt]:
        places: dict[Slot | None, list[int]] = {}
        for index, entry in enumerate(entries):
            places.setdefault(entry.slot, []).append(index)
        async with _Window(len(entries)) as window:
            free = places.pop(None, [])
            for slot, indexes in places.items():
                await window.room()
                chain = [entries[at] for at in indexes]
                window.start(indexes, self.send_entries(desk, slot, chain, timeout_s))
            for start, stop in cut([entry_bytes(entries[at]) for at in free], self.limits):
                await window.room()
                part = [entries[at] for at in free[start:stop]]
                window.start(free[start:stop], self.send_entries(desk, None, part, timeout_s))
            return await window.finish()

    async def send_entries(
        self,
        desk: TopicDesk,
        slot: Slot | None,
        entries: Sequence[Entry],
        timeout_s: float,
        kind: SendKind | None = None,
    ) -> list[Receipt]:
        """Batches one after the other, so that their order is kept."""
        receipts: list[Receipt] = []
        for start, stop in cut([entry_bytes(entry) for entry in entries], self.limits):
            stamp, first = self._ids.reserve(stop - start)
            body = encode_entries([entry[:2] for entry in entries[start:stop]], stamp, first)
            ids = IdRun(stamp, first)
            receipts += await self._send_run(desk, slot, body, ids, stop - start, timeout_s, kind)
        return receipts

    async def _send_run(
        self,
        desk: TopicDesk,
        slot: Slot | None,
        body: bytes,
        ids: IdRun,
        count: int,
        timeout_s: float,
        kind: SendKind | None = None,
    ) -> list[Receipt]:
        if kind is None:
            kind = SendKind.AWAITED if slot is None else SendKind.ORDERED
        first = await self._delivery.deliver(FrameMaker.batch, desk, slot, kind, ids, b"", 0, body, timeout_s)
        answer, place = first._answer, first._place
        return [Receipt(answer, place, ids, index) for index in range(count)]


def entry_of(desk: TopicDesk, message: bytes | Out) -> Entry:
    """A message checked and put into the form of a batch."""
    if not isinstance(message, Out):
        return Entry(check_body(message), b"", None)
    body = check_body(message.body)
    text = property_text(message.tag, message.keys, message.properties, message.order_key)
    slot = None if message.order_key is None else desk.of_key(message.order_key)
    return Entry(body, text.encode("utf-8", "replace"), slot)


def entry_bytes(entry: Entry) -> int:
    return PLAIN_ENTRY_BYTES + len(entry.body) + len(entry.more)


class _Window:
    """A bounded number of batches under way; what they bring is put into place."""

    def __init__(self, count: int) -> None:
        self._receipts: list[Receipt | None] = [None] * count
        self._errors: list[OrbitMQError] = []
        self._tasks: dict[asyncio.Task[list[Receipt]], Sequence[int]] = {}

    async def __aenter__(self) -> _Window:
        return self

    async def __aexit__(self, *details: object) -> None:
        """Whatever ended the sending, no task is left behind."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def start(self, indexes: Sequence[int], work: Coroutine[Any, Any, list[Receipt]]) -> None:
        self._tasks[asyncio.ensure_future(work)] = indexes

    async def room(self) -> None:
        while len(self._tasks) >= UNDER_WAY:
            await self._collect()

    async def finish(self) -> list[Receipt]:
        while self._tasks:
            await self._collect()
        if self._errors:
            raise PartlySent(self._receipts, self._errors)
        return self._receipts  # type: ignore[return-value]  # no error: every place is filled

    async def _collect(self) -> None:
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            indexes = self._tasks.pop(task)
            try:
                receipts = task.result()
            except OrbitMQError as error:
                self._errors.append(error)
                continue
            if isinstance(indexes, range):
                self._receipts[indexes.start : indexes.stop] = receipts
            else:
                for index, receipt in zip(indexes, receipts, strict=True):
                    self._receipts[index] = receipt


async def chunks(
    source: AsyncIterable[bytes | Out], limits: Limits, linger_s: float, now: Callable[[], float]
) -> AsyncIterator[list[bytes | Out]]:
    """Cuts a stream: a chunk goes when it is full, or when its first message has waited for `linger_s`.

    The next message is waited for in a task of its own, so that a slow source does not hold back what is there.
    """
    gathering: Gathering[bytes | Out] = Gathering(limits, linger_s)
    iterator = aiter(source)
    following: asyncio.Future[bytes | Out] | None = None
    try:
        while True:
            if following is None:
                following = asyncio.ensure_future(_next(iterator))
            left_s = None if not gathering.items else max(gathering.due - now(), 0.0)
            await asyncio.wait((following,), timeout=left_s)
            if not following.done():
                yield gathering.take()
                continue
            arrived, following = following, None
            try:
                message = arrived.result()
            except StopAsyncIteration:
                break
            if ready := gathering.add(message, stream_bytes(message), now()):
                yield ready
        if gathering.items:
            yield gathering.take()
    finally:
        if following is not None:
            following.cancel()
            await asyncio.wait((following,))


async def _next(iterator: AsyncIterator[bytes | Out]) -> bytes | Out:
    """StopAsyncIteration cannot be the result of a task, but an exception of a coroutine that is awaited can."""
    return await anext(iterator)


def stream_bytes(message: Any) -> int:
    body = message.body if isinstance(message, Out) else message
    return PLAIN_ENTRY_BYTES + (len(body) if isinstance(body, bytes | bytearray | memoryview) else 0)


def as_list(messages: Iterable[bytes | Out]) -> Sequence[bytes | Out]:
    if isinstance(messages, bytes | bytearray | memoryview | str):
        raise BadRequest(
            f"send_many got one {type(messages).__name__}, not many messages",
            hint="pass a list: send_many(topic, [body, ...]); send(topic, body) sends one",
        )
    return messages if isinstance(messages, list | tuple) else list(messages)
