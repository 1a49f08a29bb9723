"""The common transaction, in bulk: half messages, and commits and rollbacks, with JSON headers.

All of them in one network read share one commit of the log with the plain sends of that read. Whatever is not
common (a delay, a refusal, an end that came before) is left to the plain way, whose results this one must equal:
tests compare the two.

The ledger hears of a record when it is staged. Should the commit at the end of the read fail, `_settle` takes back
what is not in the log.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from orbitmq.broker import redraft
from orbitmq.broker.transaction import half_batch, records
from orbitmq.broker.transaction.ledger import Half, Ledger, Outcome
from orbitmq.broker.unique_id import UNIQUE, around_unique_id
from orbitmq.net.errors import RequestError
from orbitmq.store.bulk_append import stage_batch
from orbitmq.store.property_shapes import PropertyShapes
from orbitmq.wire import topics as names
from orbitmq.wire.codes import ResponseCode, SysFlag
from orbitmq.wire.command import FLAG_ONEWAY, FLAG_RESPONSE, Command, encode
from orbitmq.wire.errors import WireError
from orbitmq.wire.header_fields import Int32, Int64
from orbitmq.wire.header_json import HOT_ERRORS
from orbitmq.wire.headers import EndTransactionHeader
from orbitmq.wire.java_hash import string_hash
from orbitmq.wire.properties import Prop, decode_properties

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.broker.transaction.ending import EndHandler
    from orbitmq.net.connection import Connection
    from orbitmq.store.consume_queue import ConsumeQueue
    from orbitmq.wire.message import Message

END_HEAD: Final = b'{"code":37,"'
_MOST_SHAPES: Final = 1024
# Ends are small, and what they make visible is not: a network read may bring hundreds, each of a quarter of a megabyte.
MOST_STAGED_BYTES: Final = 4 << 20
# What makes more of a message than a half message, or is added by the broker itself.
_NOT_COMMON: Final = frozenset(
    {
        *redraft.DELAYS,
        Prop.TIMER_DEL_UNIQKEY,
        Prop.CLUSTER,
        Prop.REAL_TOPIC,
        Prop.REAL_QUEUE_ID,
        Prop.TRANSACTION_CHECK_TIMES,
        Prop.TRANSACTION_PREPARED_QUEUE_OFFSET,
        Prop.CHECK_IMMUNITY_SECONDS,
        Prop.INNER_MULTI_DISPATCH,
        Prop.MSG_TYPE,
        Prop.HALF_BATCH,
    }
)


class EndFields(msgspec.Struct, gc=False, rename="camel"):
    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    msg_id: str


class HotEnd(msgspec.Struct, gc=False):
    """Header of END_TRANSACTION."""

    code: Int32
    extFields: EndFields
    opaque: Int32
    flag: Int32 = 0


_decode_end = msgspec.json.Decoder(HotEnd, strict=False).decode


class Shape(NamedTuple):
    """What stands around the unique id in the text of a half message."""

    before: bytes
    behind: bytes
    group: str
    tags_code: int
    keys: bytes | None


class Doubt(NamedTuple):
    """A record that was staged: until its commit nobody knows whether it is in the log."""

    log_offset: int
    topic: str
    queue_offset: int
    ended: tuple[int, Half] | None = None
    """For an op: the offset it ends, and the transaction that is open again if the op is not there."""


class Lane:
    def __init__(self, broker: Broker, ledger: Ledger, ends: EndHandler) -> None:
        self._broker = broker
        self._ledger = ledger
        self._ends = ends
        self._shapes: dict[tuple[str, str], Shape] = {}
        self._targets: dict[tuple[str, int], bytes] = {}
        # Of the messages in a batch: the half messages of one broker all have one cluster, unless it was renamed.
        self._batch_cluster: str | None = None
        self._batch_shapes = PropertyShapes(b"")
        self._doubts: list[Doubt] = []
        self._written_to = 0

    # A half message comes.

    def half(
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
        """Stages a half message for this queue; False when it is not a common one."""
        broker = self._broker
        parts = around_unique_id(text)
        if parts is None:
            return False
        before, unique, behind = parts
        shape = self._shapes.get((before, behind)) or self._learn(before, behind)
        if (
            shape is None
            or broker.store.fault is not None
            or broker.config.reject_transaction_message
            or broker.topics.get(names.HALF_TOPIC) is None
        ):
            return False
        key = unique.encode()
        place = self._targets.get((target.topic, target.queue_id)) or self._learn_target(target)
        log = broker.store.log
        queue = broker.store.queue(names.HALF_TOPIC, records.HALF_QUEUE)
        queue_offset = queue.next_offset
        hot_send = broker.gateway.hot_send
        try:
            log_offset = log.stage(
                queue,
                body,
                shape.before + key + shape.behind + place,
                sys_flag & ~records.NOT_KEPT_FLAGS,
                flag,
                born_ms,
                conn.peer_bytes,
                0,
                0,
                shape.tags_code,
                key,
                shape.keys,
            )
        except OSError as error:
            hot_send.fail(conn, error, [] if opaque is None else [opaque])
            return True
        self._ledger.stored(
            Half(
                queue_offset,
                log_offset,
                shape.group,
                records.since(born_ms, log.store_ms),
                identity=records.identity(
                    unique, born_ms, conn.peer_bytes, shape.group, target.topic, str(target.queue_id)
                ),
                body_bytes=len(body),
            )
        )
        self._doubt(Doubt(log_offset, names.HALF_TOPIC, queue_offset))
        broker.stats.put(names.HALF_TOPIC, 1, len(body))
        if opaque is not None:
            hot_send.owe(opaque, target.queue_id, queue_offset, log_offset)
        return True

    def _learn(self, before: str, behind: str) -> Shape | None:
        text = f"{before}{UNIQUE}x{behind}"
        properties = decode_properties(text)
        if (
            properties.get(Prop.TRANSACTION_PREPARED) != "true"
            or properties.get(Prop.WAIT) != "true"
            or not properties.get(Prop.PRODUCER_GROUP)
            or properties.get(Prop.UNIQ_KEY) != "x"
            or not _NOT_COMMON.isdisjoint(properties)
            or len(properties) != len([pair for pair in text.split("\x02") if pair])
        ):
            return None
        tag, keys = properties.get(Prop.TAGS), properties.get(Prop.KEYS)
        try:
            shape = Shape(
                f"{before}{UNIQUE}".encode(),
                behind.rstrip("\x02").encode(),
                properties[Prop.PRODUCER_GROUP],
                string_hash(tag) if tag else 0,
                keys.encode() if keys else None,
            )
        except UnicodeEncodeError:
            return None
        # Keys are mostly different for each message; remembering those would push out what comes again.
        if keys is None:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            self._shapes[before, behind] = shape
        return shape

    def _learn_target(self, target: ConsumeQueue) -> bytes:
        cluster = self._broker.config.broker_cluster_name
        text = (
            f"\x02{Prop.CLUSTER}\x01{cluster}\x02{Prop.REAL_TOPIC}\x01{target.topic}"
            f"\x02{Prop.REAL_QUEUE_ID}\x01{target.queue_id}"
        )
        if len(self._targets) >= _MOST_SHAPES:
            self._targets.clear()
        place = self._targets[target.topic, target.queue_id] = text.encode()
        return place

    # It is committed or rolled back.

    def end(self, conn: Connection, data: bytes, start: int, header_end: int, stop: int) -> None:
        broker = self._broker
        if not self._end(data[start + 4 : header_end], conn):
            broker.gateway.hot_send.slow(conn, data, start, stop)
        elif broker.store.log.position - self._written_to > MOST_STAGED_BYTES:
            broker.gateway.hot_send.finish(conn)
            self._written_to = broker.store.log.position

    def _end(self, header: bytes, conn: Connection) -> bool:
        try:
            command = _decode_end(header)
        except HOT_ERRORS:
            return False
        fields = command.extFields
        outcome = records.OUTCOMES.get(fields.commit_or_rollback)
        broker = self._broker
        awaited = not command.flag & FLAG_ONEWAY
        if (
            command.flag & FLAG_RESPONSE
            or outcome is None
            or broker.config.is_slave
            or broker.store.fault is not None
        ):
            return False
        try:
            message = self._ends.half_message(
                EndTransactionHeader(
                    producer_group=fields.producer_group,
                    tran_state_table_offset=fields.tran_state_table_offset,
                    commit_log_offset=fields.commit_log_offset,
                    commit_or_rollback=fields.commit_or_rollback,
                    msg_id=fields.msg_id,
                )
            )
        except RequestError:
            return False
        half = self._ledger.find(message.queue_offset)
        target = records.real_queue(message)
        if not isinstance(half, Half) or target is None or redraft.asks_for_delay(message.properties):
            return False
        hot_send = broker.gateway.hot_send
        try:
            self._stage_end(message, half, outcome, target)
        except WireError:
            return False
        except OSError as error:
            hot_send.fail(conn, error, [command.opaque] if awaited else [])
            return True
        if awaited:
            hot_send.owe_end(encode(Command(ResponseCode.SUCCESS, FLAG_RESPONSE, command.opaque)))
        return True

    def _stage_end(self, message: Message, half: Half, outcome: Outcome, target: tuple[str, int]) -> None:
        """The real message, then the ops: a torn write never leaves an end without its message."""
        broker = self._broker
        store = broker.store
        if outcome is Outcome.COMMITTED and half_batch.is_batch(message.properties):
            count = self._stage_batch(message, target, half.log_offset)
            broker.stats.put(target[0], count, len(message.body))
        elif outcome is Outcome.COMMITTED:
            store.stage_inner(records.real(message, *target, half.log_offset))
            broker.stats.put(target[0], 1, len(message.body))
        ops = store.queue(names.OP_TOPIC, records.HALF_QUEUE)
        host = store.settings.store_host
        for offset in {half.queue_offset: None, message.queue_offset: None}:
            op_offset = ops.next_offset
            log_offset = store.stage_inner(records.op(offset, store.log.store_ms, host))
            self._doubt(Doubt(log_offset, names.OP_TOPIC, op_offset, (offset, half)))
            self._ledger.ended(offset, outcome, op_offset)

    def _stage_batch(self, half: Message, target: tuple[str, int], prepared_offset: int) -> int:
        cluster = half.properties.get(Prop.CLUSTER, "")
        if cluster != self._batch_cluster:
            self._batch_cluster, self._batch_shapes = cluster, half_batch.shapes_of(half.properties)
        store = self._broker.store
        offsets = stage_batch(
            store.log,
            store.queue(*target),
            half.body,
            self._batch_shapes,
            SysFlag.TX_COMMIT,
            half.born_ms,
            half.born_host_bytes,
            prepared_offset,
        )
        return len(offsets)

    # Did it happen?

    def _doubt(self, doubt: Doubt) -> None:
        if not self._doubts:
            self._written_to = doubt.log_offset
            asyncio.get_running_loop().call_soon(self._settle)
        self._doubts.append(doubt)

    def _settle(self) -> None:
        """After the read: its commit is done, or it failed, and the store says so."""
        doubts, self._doubts = self._doubts, []
        store = self._broker.store
        if store.fault is None:
            return
        for doubt in doubts:
            message = redraft.message_at(store, doubt.log_offset)
            if message is not None and (message.topic, message.queue_offset) == (
                doubt.topic,
                doubt.queue_offset,
            ):
                continue
            if doubt.ended is None:
                self._ledger.not_stored(doubt.queue_offset)
            else:
                self._ledger.not_ended(*doubt.ended, doubt.queue_offset)
        self._ledger.next_half = store.queue(names.HALF_TOPIC, records.HALF_QUEUE).next_offset
        self._ledger.next_op = store.queue(names.OP_TOPIC, records.HALF_QUEUE).next_offset
