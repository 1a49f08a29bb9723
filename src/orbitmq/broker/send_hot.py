"""The common send, in bulk: plain messages and batches with JSON headers, as official clients write them.

All messages of one network read are staged here and committed together by `finish`; their answers are made from a
template. Whatever is not plain (another property than expected, a topic not seen yet, anything that a check could refuse)
is left to `send.SendHandler`, whose results this path must equal: tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING

import msgspec

from orbitmq.net.connection import Connection
from orbitmq.store.consume_queue import ConsumeQueue
from orbitmq.store.durability import Durable
from orbitmq.wire import topics as names
from orbitmq.wire.codes import Perm, ResponseCode
from orbitmq.wire.command import LANGUAGE, VERSION, Command, encode
from orbitmq.wire.errors import WireError
from orbitmq.wire.header_json import SEND_V1, SEND_V2, SendV1Fields
from orbitmq.wire.java_hash import tag_code

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker

_PREFIX = Struct(">II").pack
_PLAIN_SYS_FLAGS = ~0x703  # compressed, its kind, several tags: nothing the broker acts on
_SPECIAL = (b"DELAY\x01", b"TRAN_MSG\x01", b"CLUSTER\x01", b"WAIT\x01f", b"TIMER_D", b"INNER_M")
_decode_v2 = SEND_V2.decode
_decode_v1 = SEND_V1.decode

Slow = Callable[[Connection, bytes, int, int], None]


class HotSend:
    """`staged` holds, per message or batch of the current read, what its answer needs."""

    __slots__ = ("_ack", "_broker", "_cluster", "_host", "_log", "_max_body", "_slow", "_staged", "_targets")

    def __init__(self, broker: Broker, slow: Slow) -> None:
        self._broker = broker
        self._log = broker.store.log
        self._slow = slow
        self._staged: list[tuple[int, int, int, int, list[int] | None]] = []
        self._host = broker.store.settings.store_host.hex().upper().encode()
        self._targets: dict[str, list[ConsumeQueue]] = {}
        self.configure()
        broker.topics.on_change.append(lambda name, _: self._forget(name))

    def configure(self) -> None:
        """Takes over what requests only look up. Called again when the configuration changed."""
        config = self._broker.config
        self._max_body = config.max_message_size
        self._cluster = b"CLUSTER\x01" + config.broker_cluster_name.encode()
        traced = b"true" if config.trace_on else b"false"
        region = msgspec.json.encode(config.region_id).replace(b"%", b"%%")
        self._ack = (
            b'{"code":0,"extFields":{"MSG_REGION":' + region + b',"TRACE_ON":"' + traced + b'","msgId":"%b",'
            b'"queueId":"%d","queueOffset":"%d"},"flag":1,"language":"' + LANGUAGE.encode() + b'","opaque":%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":' + str(VERSION).encode() + b"}"
        )
        self._targets.clear()

    def _forget(self, name: str) -> None:
        self._targets.pop(name, None)

    def _queues(self, name: str) -> list[ConsumeQueue] | None:
        """The queues of a topic that plain sends may go to, remembered until the topic changes."""
        broker = self._broker
        topic = broker.topics.get(name)
        config = broker.config
        if (
            topic is None
            or not topic.perm & Perm.WRITE
            or config.is_slave
            or not config.broker_permission & Perm.WRITE
            or names.is_send_forbidden(name)
            or name.startswith("%")
        ):
            return None
        queues = [broker.store.queue(name, queue_id) for queue_id in range(topic.queue_count)]
        self._targets[name] = queues
        return queues

    def slow(self, conn: Connection, data: bytes, start: int, stop: int) -> None:
        """What is staged goes first: the plain path commits for itself, and order within a connection is kept."""
        self.finish(conn)
        self._slow(conn, data, start, stop)

    # --- single messages --------------------------------------------------------------------------------------

    def v2(self, conn: Connection, data: bytes, start: int, header_end: int, stop: int) -> None:
        try:
            header = _decode_v2(data[start + 4 : header_end])
        except msgspec.DecodeError:
            self.slow(conn, data, start, stop)
            return
        f = header.extFields
        if f.j or f.m or f.f & _PLAIN_SYS_FLAGS or not self._stage(
            conn, data, header_end, stop, f.b, f.e, f.f, f.h, f.g, f.i, header.opaque, header.flag
        ):
            self.slow(conn, data, start, stop)

    def v1(self, conn: Connection, data: bytes, start: int, header_end: int, stop: int) -> None:
        try:
            header = _decode_v1(data[start + 4 : header_end])
        except msgspec.DecodeError:
            self.slow(conn, data, start, stop)
            return
        f: SendV1Fields = header.extFields
        if f.reconsume_times or f.batch or f.sys_flag & _PLAIN_SYS_FLAGS or not self._stage(
            conn,
            data,
            header_end,
            stop,
            f.topic,
            f.queue_id,
            f.sys_flag,
            f.flag,
            f.born_timestamp,
            f.properties,
            header.opaque,
            header.flag,
        ):
            self.slow(conn, data, start, stop)

    def _stage(
        self,
        conn: Connection,
        data: bytes,
        body_at: int,
        stop: int,
        topic: str,
        queue_id: int,
        sys_flag: int,
        flag: int,
        born_ms: int,
        text: str,
        opaque: int,
        rpc_flag: int,
    ) -> bool:
        queues = self._targets.get(topic) or self._queues(topic)
        if queues is None or not 0 <= queue_id < len(queues) or stop - body_at > self._max_body:
            return False
        if self._broker.store.fault is not None:
            return False
        properties = text.encode()
        for special in _SPECIAL:
            if special in properties:
                return False
        # One separator in front and one behind: names match whole, whatever comes before them.
        properties = b"\x02" + properties + (b"" if properties[-1:] == b"\x02" else b"\x02")
        found = properties.find(b"\x02TAGS\x01")
        tags_code = 0
        if found >= 0:
            tags_code = tag_code(properties[found + 6 : properties.find(b"\x02", found + 6)])
        found = properties.find(b"\x02UNIQ_KEY\x01")
        unique_key = properties[found + 10 : properties.find(b"\x02", found + 10)] if found >= 0 else None
        found = properties.find(b"\x02KEYS\x01")
        keys = properties[found + 6 : properties.find(b"\x02", found + 6)] if found >= 0 else None
        found = properties.find(b"\x02WAIT\x01true\x02")
        if found >= 0:
            properties = properties[1 : found + 1] + properties[found + 11 :] + self._cluster
        else:
            properties = properties[1:].lstrip(b"\x02") + self._cluster
        if len(properties) > 32767:
            return False
        queue = queues[queue_id]
        queue_offset = queue.next_offset
        position = self._log.stage(
            queue,
            data[body_at:stop],
            properties,
            sys_flag,
            flag,
            born_ms,
            conn.peer_bytes,
            0,
            0,
            tags_code,
            unique_key,
            keys,
        )
        self._broker.stats.put(topic, 1, stop - body_at)
        if not rpc_flag & 2:
            self._staged.append((opaque, queue_id, queue_offset, position, None))
        return True

    # --- batches ----------------------------------------------------------------------------------------------

    def batch(self, conn: Connection, data: bytes, start: int, header_end: int, stop: int) -> None:
        try:
            header = _decode_v2(data[start + 4 : header_end])
        except msgspec.DecodeError:
            self.slow(conn, data, start, stop)
            return
        f = header.extFields
        queues = self._targets.get(f.b) or self._queues(f.b)
        body = data[header_end:stop]
        if (
            queues is None
            or not 0 <= f.e < len(queues)
            or not body
            or len(body) > self._max_body
            or f.j
            or f.f & _PLAIN_SYS_FLAGS
            or b"DELAY\x01" in body
            or "WAIT\x01f" in f.i
            or "CLUSTER\x01" in f.i
            or self._broker.store.fault is not None
        ):
            self.slow(conn, data, start, stop)
            return
        queue = queues[f.e]
        outer = f.i.encode()
        more = self._cluster + b"\x02" + outer.rstrip(b"\x02") if outer else self._cluster
        queue_offset = queue.next_offset
        try:
            offsets = self._log.stage_batch(queue, body, more, f.f, f.g, conn.peer_bytes)
        except WireError:
            self.slow(conn, data, start, stop)  # the plain path finds the same and says what is wrong
            return
        self._broker.stats.put(f.b, len(offsets), len(body))
        if not header.flag & 2:
            self._staged.append((header.opaque, f.e, queue_offset, offsets[0], offsets))

    # --- the end of a read ------------------------------------------------------------------------------------

    def finish(self, conn: Connection) -> None:
        """Writes everything staged by this read with one call and answers, at once or when it is on the device."""
        if not self._log.units:
            return
        staged = self._staged
        self._staged = []
        store = self._broker.store
        try:
            end = store.commit_staged()
        except OSError as error:
            for opaque, *_ in staged:
                conn.send(encode(_failed(opaque, f"the store cannot write: {error}")))
            return
        if not staged:
            return
        if not store.settings.sync_flush:
            conn.send_parts(self._answers(staged))
            return

        def durable(outcome: Durable) -> None:
            if outcome is Durable.YES:
                conn.send(b"".join(self._answers(staged)))
                return
            for opaque, queue_id, queue_offset, position, offsets in staged:
                reply = _failed(opaque, "flushing the log failed; the broker is read-only")
                if outcome is Durable.TIMEOUT:
                    reply.code = ResponseCode.FLUSH_DISK_TIMEOUT
                    reply.remark = "stored, but not flushed within syncFlushTimeout"
                    reply.ext = {
                        "msgId": self._ids(position, offsets).decode(),
                        "queueId": str(queue_id),
                        "queueOffset": str(queue_offset),
                    }
                conn.send(encode(reply))

        store.when_durable(end, durable)

    def _ids(self, position: int, offsets: list[int] | None) -> bytes:
        return b",".join(b"%b%016X" % (self._host, offset) for offset in offsets or (position,))

    def _answers(self, staged: list[tuple[int, int, int, int, list[int] | None]]) -> list[bytes]:
        host = self._host
        ack = self._ack
        out: list[bytes] = []
        for opaque, queue_id, queue_offset, position, offsets in staged:
            if offsets is None:
                header = ack % (b"%b%016X" % (host, position), queue_id, queue_offset, opaque)
            else:
                header = ack % (b",".join([b"%b%016X" % (host, o) for o in offsets]), queue_id, queue_offset, opaque)
            size = len(header)
            out += (_PREFIX(size + 4, size), header)
        return out


def _failed(opaque: int, remark: str) -> Command:
    return Command(ResponseCode.SERVICE_NOT_AVAILABLE, flag=1, opaque=opaque, remark=remark)
