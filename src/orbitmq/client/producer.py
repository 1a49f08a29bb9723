"""Sends messages: one, many, without waiting, in order, later, within a transaction, or as a question."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from orbitmq.client.admin.schedule import Cancelled, cancel_scheduled
from orbitmq.client.batching import Batcher, as_list, chunks, entry_of
from orbitmq.client.check_back import Check, CheckBack
from orbitmq.client.core.batches import LINGER_S, MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, Limits
from orbitmq.client.core.retry_rules import RETRIES, RetryRules, SendKind
from orbitmq.client.delivery import Delivery
from orbitmq.client.errors import BadRequest
from orbitmq.client.fast_send import FrameMaker
from orbitmq.client.message import Message
from orbitmq.client.outgoing import (
    MAX_BODY_BYTES,
    OrderKey,
    Out,
    check_body,
    delivery_properties,
    json_inside,
    property_text,
)
from orbitmq.client.posting import Post
from orbitmq.client.producer_options import check_count, check_group, choice_named, compression_named
from orbitmq.client.receipt import Receipt
from orbitmq.client.request_reply import Requests
from orbitmq.client.times import Duration, seconds
from orbitmq.client.topic_desk import Slot, TopicDesk
from orbitmq.client.tracing import Interceptors
from orbitmq.client.transactions import Transaction
from orbitmq.client.watching import Watch
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.compression import compress
from orbitmq.wire.message_id import RUN_IDS

if TYPE_CHECKING:
    from orbitmq.client.client import Client

COMPRESS_FROM_BYTES: Final = 4096
C = TypeVar("C", bound=Check)


class Producer:
    """Made by `client.producer(group)`. Cheap: all producers of a client share its connections.

    `timeout` covers a send with all its tries. `choice` is "round_robin" or "least_latency". Bodies from
    `compress_from` bytes on are compressed ("zlib", "lz4", "zstd", or None for never). `check` answers brokers
    that ask what became of a transaction.
    """

    def __init__(
        self,
        client: Client,
        group: str,
        *,
        timeout: Duration | None = None,
        retries: int = RETRIES,
        retry_not_stored: bool = False,
        choice: str = "round_robin",
        compression: str | None = "zlib",
        compress_from: int = COMPRESS_FROM_BYTES,
        max_body_bytes: int = MAX_BODY_BYTES,
        batch_bytes: int = MAX_BATCH_BYTES,
        batch_messages: int = MAX_BATCH_MESSAGES,
        linger: Duration = LINGER_S,
        check: Check | None = None,
    ) -> None:
        self.client = client
        self.group = check_group(group)
        self.watch = Watch(group, client.clock, Interceptors(client.interceptors))
        self._watched = bool(self.watch)
        self.delivery = Delivery(
            client,
            group,
            RetryRules(check_count(retries, "retries", 0), retry_not_stored),
            choice_named(choice),
        )
        self._timeout_s = client.cluster.timeout_s if timeout is None else seconds(timeout, "timeout")
        self._compression = compression_named(compression)
        self._compress_from = max(compress_from, 1) if self._compression else max_body_bytes + 1
        self._max_body_bytes = max_body_bytes
        self._linger_s = seconds(linger, "linger", zero=True)
        limits = Limits(
            check_count(batch_bytes, "batch_bytes", 1),
            min(check_count(batch_messages, "batch_messages", 1), RUN_IDS),
        )
        self._batcher = Batcher(self.delivery, limits)
        self._post = Post(self.delivery, self._batcher, self._linger_s)
        self._requests = Requests(self)
        self._check_back = CheckBack(group, self.watch.interceptors)
        presence = client.presence
        presence.add_producer(group)
        self._stop_serving: list[Callable[[], None]] = [
            presence.on(RequestCode.CHECK_TRANSACTION_STATE, self._check_back.serve),
            presence.on(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._requests.take),
        ]
        client.adopt(self)
        if check is not None:
            self.on_check(check)

    # --- sending ----------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        order_key: OrderKey | None = None,
        queue: tuple[str, int] | None = None,
        deliver_after: Duration | None = None,
        deliver_at: datetime | None = None,
        delay_level: int | None = None,
        timeout: Duration | None = None,
    ) -> Receipt:
        """Sends one message and waits until it is stored.

        Messages with equal `order_key` go to one queue, in order; `queue` names it as (broker, number). Both are
        never retried, because a retry could overtake the next message. Everything else is retried on another broker.
        """
        timeout_s = self._timeout_s if timeout is None else seconds(timeout, "timeout")
        desk = self.delivery.desks.get(topic) or await self.delivery.desk(topic, timeout_s)
        if self._watched:
            system = delivery_properties(deliver_after, deliver_at, delay_level)
            return await self._send_watched(
                desk, body, tag, keys, properties, order_key, queue, system, timeout_s
            )
        sys_flag = 0
        if type(body) is not bytes or not 0 < len(body) < self._compress_from:
            body, sys_flag = self.packed(body)
        slot: Slot | None = None
        kind = SendKind.AWAITED
        more = b""
        if (
            tag is not None
            or keys is not None
            or properties is not None
            or order_key is not None
            or queue is not None
            or deliver_after is not None
            or deliver_at is not None
            or delay_level is not None
        ):
            system = delivery_properties(deliver_after, deliver_at, delay_level)
            more = json_inside(property_text(tag, keys, properties, order_key, system))
            slot, kind = _fixed(desk, order_key, queue)
        return await self.delivery.deliver(
            FrameMaker.single, desk, slot, kind, self.client.ids.next_id(), more, sys_flag, body, timeout_s
        )

    async def send_many(
        self,
        topic: str,
        messages: Iterable[bytes | Out] | AsyncIterable[bytes | Out],
        *,
        timeout: Duration | None = None,
    ) -> list[Receipt]:
        """Sends many messages in few requests; one receipt each, in the order given.

        Batches are made by size and number; of an asynchronous stream also when `linger` has passed. `timeout` is per
        batch. PartlySent tells which were stored when some were not.
        """
        timeout_s = self._timeout_s if timeout is None else seconds(timeout, "timeout")
        desk = await self.delivery.desk(topic, timeout_s)
        if isinstance(messages, AsyncIterable):
            receipts: list[Receipt] = []
            now = asyncio.get_running_loop().time
            async for chunk in chunks(messages, self._batcher.limits, self._linger_s, now):
                receipts += await self._send_all(desk, chunk, timeout_s)
            return receipts
        return await self._send_all(desk, as_list(messages), timeout_s)

    async def send_oneway(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        order_key: OrderKey | None = None,
        queue: tuple[str, int] | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Sends without an answer: fast, and silent about loss. Waits only for room in the connection."""
        timeout_s = self._timeout_s if timeout is None else seconds(timeout, "timeout")
        desk = self.delivery.desks.get(topic) or await self.delivery.desk(topic, timeout_s)
        packed, sys_flag = body, 0
        if type(body) is not bytes or not 0 < len(body) < self._compress_from:
            packed, sys_flag = self.packed(body)
        sending = self.watch.before(topic, body, tag, keys, properties) if self._watched else None
        text = property_text(tag, keys, sending.properties if sending else properties, order_key)
        slot, _ = _fixed(desk, order_key, queue)
        msg_id = self.client.ids.next_id()
        await self.delivery.oneway(desk, slot, msg_id, json_inside(text), sys_flag, packed, timeout_s)
        if sending is not None:
            self.watch.interceptors.after_send(sending, None, None)

    async def post(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        order_key: OrderKey | None = None,
        timeout: Duration | None = None,
    ) -> asyncio.Future[Receipt]:
        """Hands over one message and goes on; the future that is given back gets its receipt.

        Messages posted within `linger` of each other travel together. Without an answer they are tried again on the
        same broker. `flush` waits for all of them.
        """
        timeout_s = self._timeout_s if timeout is None else seconds(timeout, "timeout")
        desk = self.delivery.desks.get(topic) or await self.delivery.desk(topic, timeout_s)
        sending = self.watch.before(topic, body, tag, keys, properties) if self._watched else None
        properties = sending.properties if sending else properties
        message = Out(body=body, tag=tag, keys=keys, properties=properties, order_key=order_key)
        future = self._post.add(desk, entry_of(desk, message), timeout_s)
        if sending is not None:
            self.watch.posted(sending, future)
        return future

    async def flush(self) -> None:
        """Sends everything that was posted and waits for the answers; errors are in the futures."""
        await self._post.flush()

    async def cancel(self, receipt: Receipt | str, topic: str | None = None) -> Cancelled:
        """Takes back a message that waits for its delivery time: by its receipt, or by id and topic."""
        self.delivery.check_open()
        self.client.start()
        if isinstance(receipt, Receipt):
            which = receipt.recall_handle or receipt.msg_id
            return await cancel_scheduled(self.client.cluster, topic or receipt.topic, which)
        if topic is None:
            raise BadRequest(
                "which message to cancel is not said", hint="pass its receipt, or its id and topic=..."
            )
        return await cancel_scheduled(self.client.cluster, topic, receipt)

    # --- transactions -----------------------------------------------------------------------------------------

    def transaction(
        self,
        topic: str | None = None,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        order_key: OrderKey | None = None,
        timeout: Duration | None = None,
    ) -> Transaction:
        """`async with producer.transaction(...) as tx`: one or several messages, all or none; see `Transaction`."""
        if (topic is None) != (body is None):
            raise BadRequest(
                "a transaction got a topic without a body, or a body without a topic",
                hint="pass both, or neither and use tx.send(topic, body)",
            )
        first: dict[str, Any] | None = None
        if topic is not None:
            first = {"topic": topic, "body": body, "tag": tag, "keys": keys, "properties": properties}
            first |= {"order_key": order_key, "timeout": timeout}
        return Transaction(self, self._check_back, first)

    def on_check(self, handler: C) -> C:
        """Registers who answers brokers about transactions this process does not remember; usable as a decorator.

        It gets the prepared message and returns True (commit), False (roll back) or None (ask again later).
        """
        self._check_back.handler = handler
        # A producer that was restarted must be known to the brokers before it sends anything.
        self.client.presence.reach_everyone()
        return handler

    # --- request and reply ------------------------------------------------------------------------------------

    async def request(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: Duration | None = None,
    ) -> Message:
        """Sends a message and waits for the reply that its consumer gives with `reply(msg, ...)`."""
        timeout_s = self._timeout_s if timeout is None else seconds(timeout, "timeout")
        return await self._requests.request(topic, body, tag, keys, properties, timeout_s)

    async def reply(
        self,
        msg: Message,
        body: bytes,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: Duration | None = None,
    ) -> Receipt:
        """Answers a message that was sent with `request`."""
        timeout_s = self._timeout_s if timeout is None else seconds(timeout, "timeout")
        return await self._requests.reply(msg, body, tag, keys, properties, timeout_s)

    # --- life -------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self.delivery.check_open()
        self.client.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Sends what was posted and tells the brokers. The client and its other producers stay open."""
        if self.delivery.closed:
            return
        await self._post.flush()
        self.delivery.close()
        for stop in self._stop_serving:
            stop()
        self.client.release(self)
        await self.client.presence.remove_producer(self.group)

    # --- parts ------------------------------------------------------------------------------------------------

    def timeout_of(self, timeout: Duration | None) -> float:
        return self._timeout_s if timeout is None else seconds(timeout, "timeout")

    def packed(self, body: bytes) -> tuple[bytes, int]:
        """The body as it travels, checked, and compressed if that makes it smaller."""
        body = check_body(body, self._max_body_bytes)
        if len(body) >= self._compress_from and self._compression is not None:
            small = compress(body, self._compression)
            if len(small) < len(body):
                return small, self._compression.sys_flag
        return body, 0

    async def _send_all(
        self, desk: TopicDesk, messages: Sequence[bytes | Out], timeout_s: float
    ) -> list[Receipt]:
        if not messages:
            return []
        if not self._watched:
            return await self._batcher.send_all(desk, messages, timeout_s)
        return await self.watch.many(
            desk.topic, messages, lambda outs: self._batcher.send_all(desk, outs, timeout_s)
        )

    async def _send_watched(
        self,
        desk: TopicDesk,
        body: bytes,
        tag: str | None,
        keys: str | Sequence[str] | None,
        properties: Mapping[str, str] | None,
        order_key: OrderKey | None,
        queue: tuple[str, int] | None,
        system: dict[str, str],
        timeout_s: float,
    ) -> Receipt:
        """`send` with interceptors: the same, told to them before and after."""
        packed, sys_flag = self.packed(body)
        msg_id = self.client.ids.next_id()
        sending = self.watch.before(
            desk.topic, body, tag, keys, properties, delayed=bool(system), msg_id=msg_id
        )
        text = property_text(tag, keys, sending.properties, order_key, system)
        slot, kind = _fixed(desk, order_key, queue)
        work = self.delivery.deliver(
            FrameMaker.single, desk, slot, kind, msg_id, json_inside(text), sys_flag, packed, timeout_s
        )
        return await self.watch.around(sending, work)


def _fixed(
    desk: TopicDesk, order_key: OrderKey | None, queue: tuple[str, int] | None
) -> tuple[Slot | None, SendKind]:
    """The queue that the caller's wishes leave no choice about."""
    if queue is not None:
        if order_key is not None:
            raise BadRequest("order_key and queue are given", hint="choose one: both fix the queue")
        return desk.at(queue), SendKind.ORDERED
    if order_key is not None:
        return desk.of_key(order_key), SendKind.ORDERED
    return None, SendKind.AWAITED
