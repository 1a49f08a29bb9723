"""The sending half of a write task: many rows in flight, every answer awaited, a busy broker given time.

Rows travel in batches. Under `exactly-once` a batch is one half message, which no consumer sees, and a row that cannot
travel with others, or goes to a Java broker, is one of its own. A send whose answer is lost is simply done again: a
half message that nobody reports is never committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest, NotFound, OrbitMQError, Unreachable, from_response
from orbitmq.client.pipelined import Pipe
from orbitmq.client.receipt import SEND_STATUS
from orbitmq.client.sender import Outgoing, Receipt, Sender
from orbitmq.spark.sink_batches import BATCHES_AT_ONCE, Numbered, RowBatch, Sorting
from orbitmq.spark.sink_end import Abilities, Sleep, abilities
from orbitmq.spark.sink_handles import Handles
from orbitmq.spark.sink_options import SinkOptions
from orbitmq.spark.sink_rows import BadRow, Row, name_of, rows_of
from orbitmq.spark.sink_table import PlainTable
from orbitmq.wire.answer_json import Answer
from orbitmq.wire.codes import RequestCode, ResponseCode, SysFlag
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.java_hash import string_hash
from orbitmq.wire.message_id import parse_offset_msg_id
from orbitmq.wire.properties import NAME_END, PAIR_END, Prop, encode_properties

if TYPE_CHECKING:
    import pyarrow as pa

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0


class _Todo(NamedTuple):
    number: int
    row: Row
    message: Outgoing
    queue: MessageQueue | None


Lane = list[tuple[_Todo, OrbitMQError | None]]
"""Rows to be sent one after the other, with the error of those that have been tried."""
Pause = Callable[[OrbitMQError, str, Iterable[str]], Awaitable[None]]
"""Takes what went wrong, with what, and the topics that it was meant for."""


class _Tries:
    """What becomes of batches."""

    def __init__(self, batches: Iterator[RowBatch]) -> None:
        self.batches = batches
        self.rows = 0
        self.refused: list[tuple[RowBatch, OrbitMQError]] = []
        self.apart: list[RowBatch] = []

    def failed(self, batch: RowBatch, error: OrbitMQError) -> None:
        # What is wrong for good may be so with the batch only, like its size.
        if may_come_right(error):
            self.refused.append((batch, error))
        else:
            self.apart.append(batch)


class TaskSender:
    def __init__(
        self, cluster: Cluster, options: SinkOptions, group: str, task: int, *, sleep: Sleep = asyncio.sleep
    ) -> None:
        self.handles = Handles()
        self.rows = 0
        self.ordered = False
        self._cluster = cluster
        self._options = options
        self._group = group
        self._task = task
        self._sleep = sleep
        # One try at a time: between two of them a busy broker gets a pause, and the next may be another broker's.
        self._sender = Sender(cluster, group, retries=0)
        pairs = {Prop.TRANSACTION_PREPARED: "true", Prop.PRODUCER_GROUP: group}
        self._half_text = "".join(f"{PAIR_END}{name}{NAME_END}{value}" for name, value in pairs.items())
        self._delays_checked = False
        self._abilities: dict[str, Abilities] = {}

    async def send_table(self, table: pa.RecordBatch) -> None:
        """Sends the rows of one Arrow batch; returns when every one of them is stored."""
        topic = self._options.topic
        plain = PlainTable.of(table, topic, self._options.max_body_bytes) if self._in_batches else None
        if plain is None:
            await self.send(rows_of(table, topic, self.rows, self._task))
        else:
            await self._send_all(plain, plain.rows)

    async def send(self, rows: Iterator[Row]) -> None:
        """Sends rows; returns when every one of them is stored."""
        numbered = [Numbered(index, row) for index, row in enumerate(rows)]
        sorting = Sorting(numbered, self._options.max_body_bytes, in_batches=self._in_batches)
        await self._send_all(sorting, len(numbered))

    @property
    def _in_batches(self) -> bool:
        """Whether rows may travel in batches, as far as is known."""
        return all(known.half_batch for known in self._abilities.values())

    async def _send_all(self, sorting: Sorting | PlainTable, count: int) -> None:
        """Those with an order key wait for each other, but half messages: they get their order at the commit.

        Nothing goes out before all are known to be right.
        """
        transactional = self._options.transactional
        todo = [await self._prepared(index, row) for index, row in sorting.alone]
        receipts: dict[int, Receipt] = {}
        in_batches, refused, apart = await self._store_batches(sorting)
        at_once = apart + [item for item in todo if transactional or item.queue is None]
        refused += await self._first_try(at_once, receipts)
        lanes = [] if transactional else self._lanes(todo)
        await self._store_lanes([*([pair] for pair in refused), *lanes], receipts)
        if in_batches + len(receipts) != count:
            raise AssertionError(f"of {count} rows {in_batches} went in batches and {len(receipts)} alone")
        if transactional:
            for _, receipt in sorted(receipts.items()):
                self._note_half(receipt.broker, receipt.offset_msg_id, receipt.queue_offset)
        self.rows += count

    def _note_half(self, broker: str, offset_msg_id: str, queue_offset: int) -> None:
        self.handles.add(broker, parse_offset_msg_id(offset_msg_id)[2], queue_offset)

    async def _store_lanes(self, lanes: list[Lane], receipts: dict[int, Receipt]) -> None:
        async def work() -> None:
            # All workers share the lanes: whoever is free takes the next one.
            while lanes:
                for item, error in lanes.pop():
                    receipts[item.number] = await self._stored(item, error)

        await _side_by_side([work] * min(self._options.max_alone_in_flight, len(lanes)))

    async def _store_batches(self, sorting: Sorting | PlainTable) -> tuple[int, Lane, list[_Todo]]:
        """Rows that were stored in batches; those of batches that were refused, and those that cannot be stored so.

        The latter two go each for itself from now on, under the ids they had. A half message that was refused is sent
        again as it is, until that takes too long: to a broker with too much to do its rows would be hundreds of them.
        """
        tries = _Tries(sorting.batches(self._options.max_in_flight, self._sender.ids))
        pause = self._pauses()
        while True:
            await self._try_batches(tries)
            if not tries.refused or not self._options.transactional:
                break
            # Of several errors one that asks for a new route: a busy broker has not moved.
            batch, error = max(tries.refused, key=lambda item: item[1].code != ResponseCode.SYSTEM_BUSY)
            first = batch.rows()[0]
            name = f"{self._name(first.number, first.row)}, with {batch.size - 1} others,"
            await pause(error, name, {each.topic for each, _ in tries.refused})
            tries.batches = iter([batch for batch, _ in tries.refused])
            tries.refused = []
        lane: Lane = [(item, error) for batch, error in tries.refused for item in await self._single(batch)]
        return tries.rows, lane, [item for batch in tries.apart for item in await self._single(batch)]

    async def _try_batches(self, tries: _Tries) -> None:
        """Sends each batch once."""
        transactional = self._options.transactional
        code = RequestCode.SEND_MESSAGE_V2 if transactional else RequestCode.SEND_BATCH_MESSAGE
        sent: list[tuple[RowBatch, MessageQueue, str]] = []

        def note(number: int, outcome: Answer | OrbitMQError) -> None:
            batch, queue, addr = sent[number]
            if isinstance(outcome, OrbitMQError):
                tries.failed(batch, outcome)
            elif outcome.code not in SEND_STATUS:
                tries.failed(batch, from_response(code, outcome.code, outcome.remark, addr))
            else:
                tries.rows += batch.size
                place = outcome.extFields
                if transactional:
                    self._note_half(queue.broker_name, place.msgId, place.queueOffset)

        at_once = min(BATCHES_AT_ONCE, self._options.max_in_flight)
        pipe = Pipe(self._cluster, at_once=at_once, done=note)
        for batch in tries.batches:
            message = Outgoing(batch.topic, batch.body, 0, 0, "", "")
            if transactional:
                message = self._half_batch(batch)
            try:
                addr, queue, command = await self._sender.placed(message, code=code)
                if transactional and not 1 < batch.size <= (await self._abilities_of(addr)).half_batch:
                    tries.apart.append(batch)
                    continue
            except OrbitMQError as error:
                tries.failed(batch, error)
                continue
            sent.append((batch, queue, addr))
            await pipe.put(addr, command)
        await pipe.finish()

    async def _single(self, batch: RowBatch) -> list[_Todo]:
        return [
            await self._prepared(index, row, str(batch.ids[place]))
            for place, (index, row) in enumerate(batch.rows())
        ]

    def _half_batch(self, batch: RowBatch) -> Outgoing:
        """Under the id of its last row: where that is found, the commit has come to its end."""
        msg_id = str(batch.ids[batch.size - 1])
        pairs = {Prop.UNIQ_KEY: msg_id, Prop.WAIT: "true", Prop.HALF_BATCH: str(batch.size)}
        properties = encode_properties(pairs).decode() + self._half_text
        return Outgoing(batch.topic, batch.body, SysFlag.TX_PREPARED, 0, properties, msg_id)

    async def _abilities_of(self, addr: str) -> Abilities:
        known = self._abilities.get(addr)
        if known is None:
            known = self._abilities[addr] = await abilities(self._cluster, addr)
        return known

    async def _first_try(self, todo: Sequence[_Todo], receipts: dict[int, Receipt]) -> Lane:
        """Sends all of them, many at a time; those that were not stored, and why."""
        refused: Lane = []
        sent: list[tuple[_Todo, MessageQueue, str]] = []

        def note(number: int, outcome: Answer | OrbitMQError) -> None:
            item, queue, addr = sent[number]
            if isinstance(outcome, OrbitMQError):
                refused.append((item, outcome))
            elif outcome.code in SEND_STATUS:
                receipts[item.number] = stored(item.message, queue, outcome)
            else:
                code = RequestCode.SEND_MESSAGE_V2
                refused.append((item, from_response(code, outcome.code, outcome.remark, addr)))

        pipe = Pipe(self._cluster, at_once=self._options.max_alone_in_flight, done=note)
        for item in todo:
            fixed = item.queue
            try:
                addr, queue, command = await self._sender.placed(
                    item.message,
                    queue_id=fixed.queue_id if fixed else None,
                    broker=fixed.broker_name if fixed else None,
                )
            except OrbitMQError as error:
                refused.append((item, error))
                continue
            sent.append((item, queue, addr))
            await pipe.put(addr, command)
        await pipe.finish()
        return refused

    def _lanes(self, todo: Sequence[_Todo]) -> list[Lane]:
        """Rows that must not overtake each other share a lane."""
        of_queue: dict[MessageQueue, Lane] = {}
        for item in todo:
            if item.queue is not None:
                of_queue.setdefault(item.queue, []).append((item, None))
        return list(of_queue.values())

    async def _prepared(self, index: int, row: Row, msg_id: str | None = None) -> _Todo:
        if len(row.body) > self._options.max_body_bytes:
            raise BadRow(
                f"{self._name(index, row)}: the body has {len(row.body):,} bytes, "
                f"allowed are {self._options.max_body_bytes:,} (option maxBodyBytes)",
                hint="split or compress it before the write; the broker's limit is maxMessageSize",
            )
        if row.is_delayed and self._options.transactional and not self._delays_checked:
            await self._check_delays(index, row)
        try:
            message = self._sender.prepare(
                row.topic,
                row.body,
                tag=row.tag,
                keys=row.keys,
                properties=row.properties,
                delay_level=row.delay_level,
                deliver_ms=row.deliver_ms,
                msg_id=msg_id,
            )
        except BadRequest as error:
            raise BadRow(f"{self._name(index, row)}: {error}", hint=error.hint) from error
        if self._options.transactional:
            message = replace(
                message,
                sys_flag=message.sys_flag | SysFlag.TX_PREPARED,
                properties=message.properties + self._half_text,
            )
        queue = None
        if row.order_key is not None:
            self.ordered = True
            queue = await self._queue_of(index, row, row.order_key)
        return _Todo(index, row, message, queue)

    def _name(self, index: int, row: Row) -> str:
        return name_of(row, self.rows + index, self._task)

    async def _queue_of(self, index: int, row: Row, order_key: str) -> MessageQueue:
        queues = (await self._cluster.publish_route(row.topic)).publish_queues()
        if not queues:
            raise NotFound(
                f"{self._name(index, row)}: topic '{row.topic}' has no writable queue",
                hint=f"see `orbitmq topic route {row.topic}`",
            )
        return queues[abs(string_hash(order_key)) % len(queues)]

    async def _check_delays(self, index: int, row: Row) -> None:
        """A Java broker would deliver the half message itself after the delay, so that is refused."""
        route = await self._cluster.publish_route(row.topic)
        for name, addr in route.masters().items():
            if not (await self._abilities_of(addr)).native:
                raise BadRow(
                    f"{self._name(index, row)} asks for a delay, and broker {name} cannot delay "
                    "transactional messages",
                    hint='use .option("delivery", "at-least-once") for delayed rows on this broker',
                )
        self._delays_checked = True

    async def _stored(self, item: _Todo, error: OrbitMQError | None) -> Receipt:
        """Sends until it is stored; with an error it has been tried once already."""
        pause = self._pauses()
        while True:
            if error is not None:
                await pause(error, self._name(item.number, item.row), {item.row.topic})
            try:
                if item.queue is None:
                    return await self._sender.send(item.message)
                return await self._sender.send(
                    item.message, queue_id=item.queue.queue_id, broker=item.queue.broker_name
                )
            except OrbitMQError as again:
                error = again

    def _pauses(self) -> Pause:
        """Pauses between tries, longer and longer; raises when the trouble lasts longer than `retryTimeoutMs`."""
        now = asyncio.get_running_loop().time
        pause_s, give_up_at = FIRST_PAUSE_S, 0.0

        async def pause(error: OrbitMQError, name: str, topics: Iterable[str]) -> None:
            nonlocal pause_s, give_up_at
            give_up_at = give_up_at or now() + self._options.retry_timeout_s
            if not may_come_right(error) or now() + pause_s > give_up_at:
                error.args = (f"{name} was not stored: {error}",)
                raise error
            # Spread over time, so that those that were refused together do not come back together.
            await self._sleep(pause_s * (0.5 + self._cluster.rng.random()))
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            if error.code != ResponseCode.SYSTEM_BUSY:
                for topic in topics:
                    with suppress(OrbitMQError):  # who is not reached now may have moved, or come back
                        await self._cluster.publish_route(topic, refresh=True)

        return pause


def stored(message: Outgoing, queue: MessageQueue, answer: Answer) -> Receipt:
    return Receipt(
        status=SEND_STATUS[answer.code],
        topic=message.topic,
        msg_id=message.msg_id,
        offset_msg_id=answer.extFields.msgId,
        broker=queue.broker_name,
        queue_id=answer.extFields.queueId,
        queue_offset=answer.extFields.queueOffset,
    )


def may_come_right(error: OrbitMQError) -> bool:
    return error.retryable or isinstance(error, Unreachable)


async def _side_by_side(jobs: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Runs all; the first error cancels the rest and is raised as itself."""

    async def one(job: Callable[[], Awaitable[None]]) -> None:
        await job()

    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(one(job))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
