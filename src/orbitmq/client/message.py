"""A message as a user sees it: a view on the record a broker sent, taken apart only where it is looked at.

Most handlers read the body and little else, so making a message costs a few references; body, properties and
ids are decoded when first asked for. A message of a consumer is settled exactly once, in one of three ways:

    async with msg:              # leaving acknowledges; an exception has it retried with back-off
        await handle(msg.body)

    msg.ack()                    # the same without a block
    msg.retry(after=60)          # later again; counts as a failed try
    msg.dead("no such order")    # straight to the group's dead letters, with the reason

A message that was handed out and never settled is not acknowledged by asking for the next one: that would lose
it if the process dies. Its queue's offset stays where it is, and the queue stops when its cache is full.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Generator
from datetime import UTC, datetime
from struct import Struct
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar, overload

import msgspec

from orbitmq.client.errors import BadRequest, OrbitMQError
from orbitmq.client.times import Duration, seconds
from orbitmq.wire.checksum import crc32, raw_crc32
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.compression import decompress
from orbitmq.wire.errors import WireError
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.message import HEADS, MESSAGE_MAGIC_V2
from orbitmq.wire.message_id import offset_msg_id, unpack_host
from orbitmq.wire.properties import Prop, decode_properties, split_keys
from orbitmq.wire.topics import RETRY_PREFIX

log = logging.getLogger("orbitmq.consumer")

T = TypeVar("T")

_V6_FLAGS: Final = SysFlag.BORN_V6 | SysFlag.STORE_V6
_V6_SHIFT: Final = 4
_UNUSUAL: Final = _V6_FLAGS | SysFlag.COMPRESSED
_BODY_AT: Final = HEADS[0].size
_SIZE: Final = Struct(">i")
QUEUE_OFFSET: Final = Struct(">20xq")
# Checksum, sysFlag and body length of a record with IPv4 hosts, which nearly all records have.
_BODY_HEAD: Final = Struct(">8xI24xi44xi")
_SHORT: Final = Struct(">h")

OPEN, HANDLED, REJECTED = 0, 1, 2

# Where the fields lie in the unpacked head.
_QUEUE_ID, _FLAG, _OFFSET, _PHYSICAL, _SYS_FLAG, _BORN_MS, _BORN_HOST = 3, 4, 5, 6, 7, 8, 9
_STORE_MS, _STORE_HOST, _RECONSUMED, _PREPARED, _BODY_LENGTH = 10, 11, 12, 13, 14


class Origin(Protocol):
    """Where a message came from, and who is told what became of it."""

    def finish(self, msg: Message) -> None:
        """It was handled."""

    def retry(self, msg: Message, after_s: float | None, reason: str) -> Awaitable[None]:
        """It is to be delivered again, after the broker's back-off when no time is given."""

    def bury(self, msg: Message, reason: str) -> Awaitable[None]:
        """It is to be put aside as a dead letter."""

    def release(self, msg: Message) -> None:
        """Its handling was cancelled: nothing is known about it, so it has to be handed out again."""


class Settled:
    """What settling gives back: it happens in any case, and may be awaited to know that it is done."""

    __slots__ = ("_work",)

    def __init__(self, work: Awaitable[None] | None = None) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, None, None]:
        if self._work is not None:
            yield from self._work.__await__()


DONE: Final = Settled()


class Message:
    """One message. Attributes are read from the record on demand; the record itself is never changed."""

    __slots__ = (
        "_body",
        "_buf",
        "_head",
        "_origin",
        "_properties",
        "_settled",
        "_start",
        "broker",
        "transaction",
    )

    def __init__(self, buf: bytes, start: int, broker: str, origin: Origin | None = None) -> None:
        self._buf = buf
        self._start = start
        self.broker = broker
        self._origin = origin
        self._body: bytes | None = None
        self._properties: dict[str, str] | None = None
        self._head: tuple[Any, ...] | None = None
        self._settled = OPEN
        # The open database transaction while a consumer with `dedup=` handles this message.
        self.transaction: Any = None

    def __repr__(self) -> str:
        return f"<Message {self.msg_id} of {self.topic} at {self.broker}/{self.queue_id}:{self.queue_offset}>"

    @property
    def body(self) -> bytes:
        """The body as its producer gave it. Raises OrbitMQError when its checksum or compression is bad."""
        body = self._body
        if body is None:
            # Nearly all records have IPv4 hosts and are not compressed: those are read without a further call.
            buf, start = self._buf, self._start
            crc, sys_flag, length = _BODY_HEAD.unpack_from(buf, start)
            if sys_flag & _UNUSUAL:
                body = self._unusual_body()
            else:
                start += _BODY_AT
                body = buf[start : start + length]
                # Java does not check empty bodies, and some writers leave any number there.
                if raw_crc32(body) & 0x7FFFFFFF != crc and body:
                    raise self._damaged()
            self._body = body
        return body

    @property
    def text(self) -> str:
        """The body as UTF-8 text."""
        return self.body.decode()

    @overload
    def json(self) -> Any: ...
    @overload
    def json(self, type: type[T]) -> T: ...
    def json(self, type: type[Any] | None = None) -> Any:
        """The body read as JSON, checked against a type if one is given."""
        return msgspec.json.decode(self.body) if type is None else msgspec.json.decode(self.body, type=type)

    @property
    def topic(self) -> str:
        """The topic it was sent to; for a retried message the original one, not the group's retry topic."""
        topic = self.stored_topic
        if topic.startswith(RETRY_PREFIX):
            return self.properties.get(Prop.RETRY_TOPIC, topic)
        return topic

    @property
    def stored_topic(self) -> str:
        """The topic whose queue it was read from."""
        at, end = self._topic_span()
        return str(self._buf[at:end], "utf-8", "replace")

    @property
    def tag(self) -> str | None:
        return self.properties.get(Prop.TAGS)

    @property
    def keys(self) -> list[str]:
        return split_keys(self.properties.get(Prop.KEYS))

    @property
    def properties(self) -> dict[str, str]:
        """All properties, those of the system included. A copy of what is stored: changing it changes nothing."""
        found = self._properties
        if found is None:
            _, topic_end = self._topic_span()
            length = _SHORT.unpack_from(self._buf, topic_end)[0]
            at = topic_end + _SHORT.size
            found = self._properties = decode_properties(self._buf[at : at + length])
        return found

    @property
    def queue(self) -> MessageQueue:
        """The queue it was read from."""
        return MessageQueue(self.stored_topic, self.broker, self.queue_id)

    @property
    def queue_id(self) -> int:
        return self._field(_QUEUE_ID)

    @property
    def queue_offset(self) -> int:
        offset: int = QUEUE_OFFSET.unpack_from(self._buf, self._start)[0]
        return offset

    @property
    def commit_log_offset(self) -> int:
        return self._field(_PHYSICAL)

    @property
    def msg_id(self) -> str:
        """The id its producer gave it; the same in every retry."""
        return self.properties.get(Prop.UNIQ_KEY) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """The id of this very record: broker address and place in its log."""
        return offset_msg_id(self._fields()[_STORE_HOST], self.commit_log_offset)

    @property
    def reconsume_times(self) -> int:
        """How often it failed before: 0 for the first delivery."""
        return self._field(_RECONSUMED)

    @property
    def born_ms(self) -> int:
        return self._field(_BORN_MS)

    @property
    def born_at(self) -> datetime:
        return datetime.fromtimestamp(self.born_ms / 1000, UTC)

    @property
    def born_host(self) -> str:
        return unpack_host(self._fields()[_BORN_HOST])

    @property
    def store_ms(self) -> int:
        return self._field(_STORE_MS)

    @property
    def stored_at(self) -> datetime:
        return datetime.fromtimestamp(self.store_ms / 1000, UTC)

    @property
    def store_host(self) -> str:
        return unpack_host(self._fields()[_STORE_HOST])

    @property
    def flag(self) -> int:
        return self._field(_FLAG)

    @property
    def sys_flag(self) -> int:
        return self._field(_SYS_FLAG)

    @property
    def size(self) -> int:
        """Bytes of the whole record."""
        size: int = _SIZE.unpack_from(self._buf, self._start)[0]
        return size

    @property
    def record(self) -> bytes:
        """The record as the broker sent it."""
        return self._buf[self._start : self._start + self.size]

    @property
    def origin(self) -> Origin | None:
        """Who hears what becomes of it; None when it was read without a group."""
        return self._origin

    @property
    def settled(self) -> bool:
        """It was acknowledged, retried or put aside."""
        return self._settled != OPEN

    @property
    def rejected(self) -> bool:
        """Its handler asked for a retry or for the dead letters: whatever it did must not count."""
        return self._settled == REJECTED

    def ack(self) -> Settled:
        """It is handled and must not come again."""
        origin = self._settle("acknowledged", HANDLED)
        if origin is not None:
            origin.finish(self)
        return DONE

    def retry(self, after: Duration | None = None, *, reason: str = "") -> Settled:
        """It is to come again: after the group's next back-off step, or about `after` seconds.

        Brokers know 18 delays from 1 s to 2 h, so `after` is rounded up to the next of them; an ordered
        consumer waits exactly, between 10 ms and 30 s, with its queue standing still.
        """
        after_s = None if after is None else seconds(after, "after", zero=True)
        origin = self._settle("retried", REJECTED)
        return DONE if origin is None else Settled(origin.retry(self, after_s, reason))

    def dead(self, reason: str = "") -> Settled:
        """It can never be handled: to the group's dead letters, where `orbitmq dead list` shows the reason."""
        origin = self._settle("put among the dead letters", REJECTED)
        return DONE if origin is None else Settled(origin.bury(self, reason))

    def again(self, *, failed: bool = False) -> Message:
        """The same message, unsettled, for another try; a failed one counts that."""
        fresh = type(self)(self._buf, self._start, self.broker, self._origin)
        fresh._head = head = self._fields()
        if failed:
            fresh._head = (*head[:_RECONSUMED], head[_RECONSUMED] + 1, *head[_RECONSUMED + 1 :])
        return fresh

    def for_origin(self, origin: Origin) -> Message:
        """The same message with somebody else to hear what becomes of it."""
        fresh = self.again()
        fresh._origin = origin
        fresh._body, fresh._properties, fresh._head = self._body, self._properties, self._head
        return fresh

    async def __aenter__(self) -> Self:
        if self._origin is None:
            raise self._not_consumed("handled in a block")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            if not self._settled:
                self._settled = HANDLED
                self._origin.finish(self)  # type: ignore[union-attr]  # checked on entering
            return False
        return self.fail(error)

    def fail(self, error: BaseException) -> bool:
        """What an exception does to its message; tells whether the exception was dealt with by that."""
        if not isinstance(error, Exception):
            # A cancelled handler tells nothing about its message.
            if not self._settled and self._origin is not None:
                self._settled = REJECTED
                self._origin.release(self)
            return False
        if self._settled:
            log.warning("an error after %r was settled", self, exc_info=error)
        else:
            log.warning("handling %r failed for the %d. time", self, self.reconsume_times + 1, exc_info=error)
            self.retry(reason=f"{type(error).__name__}: {error}")
        return True

    def _settle(self, how: str, outcome: int) -> Origin | None:
        """Marks it settled; None when it was before: the first word counts."""
        if self._origin is None:
            raise self._not_consumed(how)
        if self._settled:
            return None
        self._settled = outcome
        return self._origin

    def _not_consumed(self, how: str) -> BadRequest:
        return BadRequest(
            f"{self!r} cannot be {how}: it was read without a consumer group",
            hint="use `client.consumer(group, topic)` for messages that are to be acknowledged",
        )

    def _fields(self) -> tuple[Any, ...]:
        head = self._head
        if head is None:
            _, sys_flag, _ = _BODY_HEAD.unpack_from(self._buf, self._start)
            head = HEADS[(sys_flag & _V6_FLAGS) >> _V6_SHIFT].unpack_from(self._buf, self._start)
            self._head = head
        return head

    def _field(self, index: int) -> int:
        value: int = self._fields()[index]
        return value

    def _body_span(self) -> tuple[int, int, int, int]:
        """Checksum, sysFlag, and where the body begins and ends."""
        start = self._start
        crc, sys_flag, length = _BODY_HEAD.unpack_from(self._buf, start)
        if not sys_flag & _V6_FLAGS:
            at = start + _BODY_AT
            return crc, sys_flag, at, at + length
        at = start + HEADS[(sys_flag & _V6_FLAGS) >> _V6_SHIFT].size
        return crc, sys_flag, at, at + self._field(_BODY_LENGTH)

    def _unusual_body(self) -> bytes:
        crc, sys_flag, at, end = self._body_span()
        body = self._buf[at:end]
        if crc32(body) != crc and body:
            raise self._damaged()
        try:
            return decompress(body, sys_flag)
        except WireError as error:
            raise OrbitMQError(f"the body of {self!r} cannot be read: {error}") from error

    def _damaged(self) -> OrbitMQError:
        return OrbitMQError(
            f"{self!r} arrived damaged: the checksum of its body is wrong",
            hint="check the broker's store with `orbitmq store verify`, or read it from a replica",
        )

    def _topic_span(self) -> tuple[int, int]:
        _, _, _, body_end = self._body_span()
        if self._fields()[1] == MESSAGE_MAGIC_V2:
            at = body_end + _SHORT.size
            end = at + int(_SHORT.unpack_from(self._buf, body_end)[0])
        else:
            at = body_end + 1
            end = at + self._buf[body_end]
        if not at <= end <= self._start + self.size - _SHORT.size:
            raise OrbitMQError(
                f"the record at offset {self.queue_offset} of queue {self.queue_id} on {self.broker} is damaged",
                hint="check the broker's store with `orbitmq store verify`, or read it from a replica",
            )
        return at, end
