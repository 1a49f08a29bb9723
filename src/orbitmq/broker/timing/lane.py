"""The common delayed send, in bulk: messages that ask for a level or a moment, with JSON headers.

All of them in one network read share one commit of the log with the plain sends of that read. What is stored and
answered is what the plain way stores and answers, since the shape of a text is learnt from it; tests compare the two.
"""

from __future__ import annotations

import asyncio
from binascii import b2a_base64
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.broker.send import Draft
from orbitmq.broker.timing import rules
from orbitmq.broker.unique_id import UNIQUE, around_unique_id
from orbitmq.net.errors import RequestError
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.properties import MAX_PROPERTIES_BYTES, Prop, decode_properties

if TYPE_CHECKING:
    from collections.abc import Callable

    from orbitmq.broker.broker import Broker
    from orbitmq.net.connection import Connection
    from orbitmq.store.consume_queue import ConsumeQueue

_PLACEHOLDER: Final = "\x03" * 8
_MOST_SHAPES: Final = 4096
_ASKS: Final = (Prop.DELAY, *rules.TIMER_PROPERTIES)
# Whatever makes another kind of message of it, or has another room look at it.
_NOT_COMMON: Final = frozenset(
    {
        Prop.TRANSACTION_PREPARED,
        Prop.TIMER_DEL_UNIQKEY,
        Prop.TIMER_OUT_MS,
        Prop.INNER_MULTI_DISPATCH,
        Prop.MSG_TYPE,
    }
)
_HOST_FLAGS: Final = SysFlag.BORN_V6 | SysFlag.STORE_V6
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
SOON_MS: Final = 1_000
"""A message due within this time wakes the clockwork; later ones are found by its regular look."""


class Shape(NamedTuple):
    """What is stored for a text around its unique id, and where."""

    queue: ConsumeQueue
    before: bytes
    behind: bytes
    tags_code: int
    keys: bytes | None
    delay_ms: int | None
    """By level: counted from the store time. Otherwise the text names the moment."""
    due_ms: int


class Lane:
    def __init__(self, broker: Broker, wake: Callable[[], None]) -> None:
        self._broker = broker
        self._wake = wake
        self._waking = False
        self._cluster = ""
        self._shapes: dict[tuple[str, str, str, int], Shape] = {}
        broker.topics.on_change.append(lambda name, _: self._shapes.clear())

    def take(
        self,
        conn: Connection,
        target: ConsumeQueue,
        body: bytes,
        text: str,
        sys_flag: int,
        flag: int,
        born_ms: int,
        opaque: int | None,
    ) -> bool:
        """Stages a delayed message for this queue; False when it is not a common one."""
        parts = around_unique_id(text)
        store = self._broker.store
        if parts is None or store.refusal:
            return False
        before, unique, behind = parts
        if self._cluster != self._broker.config.broker_cluster_name:
            self._cluster = self._broker.config.broker_cluster_name
            self._shapes.clear()
        place = (before, behind, target.topic, target.queue_id)
        shape = self._shapes.get(place) or self._learn(*place)
        if shape is None or len(shape.before) + len(unique) + len(shape.behind) > MAX_PROPERTIES_BYTES:
            return False
        key = unique.encode()
        log, queue = store.log, shape.queue
        queue_offset = queue.next_offset
        hot_send = self._broker.gateway.hot_send
        try:
            log_offset = log.stage(
                queue,
                body,
                shape.before + key + shape.behind,
                sys_flag & ~_HOST_FLAGS,
                flag,
                born_ms,
                conn.peer_bytes,
                0,
                0,
                shape.tags_code,
                key,
                shape.keys,
                shape.delay_ms,
            )
        except OSError as error:
            hot_send.fail(conn, error, [] if opaque is None else [opaque])
            return True
        due_ms = shape.due_ms if shape.delay_ms is None else log.store_ms + shape.delay_ms
        self._broker.stats.put(queue.topic, 1, len(body))
        if opaque is not None:
            handle = self._handle(target.topic, due_ms, key)
            hot_send.owe(opaque, target.queue_id, queue_offset, log_offset, b'","recallHandle":"' + handle)
        if due_ms - log.store_ms <= SOON_MS:
            self._wake_after_this_read()
        return True

    def _learn(self, before: str, behind: str, topic: str, queue_id: int) -> Shape | None:
        """The plain way, once, with a placeholder for the unique id."""
        text = f"{before}{UNIQUE}{_PLACEHOLDER}{behind}"
        properties = decode_properties(text)
        if (
            not any(name in properties for name in _ASKS)
            or properties.pop(Prop.WAIT, "") != "true"
            or properties.get(Prop.UNIQ_KEY) != _PLACEHOLDER
            or not _NOT_COMMON.isdisjoint(properties)
            or text.count(_PLACEHOLDER) != 1
        ):
            return None
        broker = self._broker
        store = broker.store
        properties[Prop.CLUSTER] = self._cluster
        draft = Draft(topic, queue_id, b"", properties, 0, 0, 0, bytes(8))
        now_ms = max(broker.clock(), store.log.store_ms)
        limit_ms = broker.config.timer_max_delay_sec * 1000
        try:
            due_ms = rules.divert(draft, now_ms, store.settings.delay_levels_ms, limit_ms)
            message = draft.finish()
        except (RequestError, UnicodeError):
            return None
        before_id, found, behind_id = message.properties.partition(_PLACEHOLDER.encode())
        if due_ms is None or not found:
            return None
        shape = Shape(
            store.queue(message.topic, message.queue_id),
            before_id,
            behind_id,
            message.tags_code,
            message.keys,
            message.delay_ms,
            due_ms,
        )
        # Keys and moments are different for each message; remembering those would push out what comes again.
        if message.keys is None and message.delay_ms is not None:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            self._shapes[before, behind, topic, queue_id] = shape
        return shape

    def _handle(self, topic: str, due_ms: int, msg_id: bytes) -> bytes:
        """`RecallHandle.encode`, without its steps."""
        name = self._broker.config.broker_name
        text = b"v1 %b %b %d %b" % (topic.encode(), name.encode(), due_ms, msg_id)
        return b2a_base64(text, newline=False).translate(_URL_SAFE)

    def _wake_after_this_read(self) -> None:
        """By then its commit is done, or the store says that it failed."""
        if not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_soon(self._woken)

    def _woken(self) -> None:
        self._waking = False
        self._wake()
