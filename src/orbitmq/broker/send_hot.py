"""The common send, in bulk: plain messages and batches with JSON headers, as official clients write them.

The messages of one network read are collected here, staged in one loop and committed together by `finish`; their
answers are made from a template. Whatever is not plain (a property the broker acts on, a topic not seen yet, anything
that a check could refuse) is left to `send.SendHandler`, whose results this path must equal: tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING

import msgspec

from orbitmq import accel
from orbitmq.broker.send import COPY_PROBLEMS
from orbitmq.broker.send_shapes import ID_CHARS, UNIQUE, UNIQUE_CHARS, SendShapes
from orbitmq.net.connection import Connection
from orbitmq.store.bulk_append import Item, stage_batch, stage_many
from orbitmq.store.commit_log import LARGEST_HEAD_BYTES
from orbitmq.store.consume_queue import ConsumeQueue
from orbitmq.store.durability import Durable
from orbitmq.store.property_shapes import PropertyShapes
from orbitmq.store.staged import Hashes
from orbitmq.wire import topics as names
from orbitmq.wire.codes import Perm, ResponseCode, SysFlag
from orbitmq.wire.command import LANGUAGE, VERSION, Command, decode, encode
from orbitmq.wire.errors import WireError
from orbitmq.wire.frame import FrameReader
from orbitmq.wire.header_json import HOT_ERRORS, SEND_V1, SEND_V2
from orbitmq.wire.properties import MAX_PROPERTIES_BYTES

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker

_prefix = Struct(">II").pack
_PLAIN_SYS_FLAGS = ~0x703  # compressed, its kind, several tags: nothing the broker acts on
_MOST_OUTER_TEXTS = 64
# Given for the batch as a whole these would count for each of its messages; no client does so.
_NOT_OF_A_BATCH = ("WAIT\x01f", "CLUSTER\x01", "UNIQ_KEY\x01", "KEYS\x01", "TAGS\x01")
_decode_v2 = SEND_V2.decode
_decode_v1 = SEND_V1.decode

Slow = Callable[[Connection, bytes, int, int], None]
Prepared = Callable[[Connection, ConsumeQueue, bytes, str, int, int, int, int | None], bool]
"""Takes (connection, queue it is meant for, body, properties, sysFlag, flag, birth, opaque); False: not common."""
Ack = tuple[int, int, int, bytes, bytes]
"""(opaque, queue id, queue offset, message ids, further fields)"""


class HotSend:
    __slots__ = (
        "_ack",
        "_acks",
        "_batch_shapes",
        "_broker",
        "_bulk_settings",
        "_bulk_topics",
        "_done",
        "_ends",
        "_host",
        "_items",
        "_log",
        "_max_body",
        "_shapes",
        "_slow",
        "_targets",
        "_waiting",
        "delayed",
        "prepared",
    )

    def __init__(self, broker: Broker, slow: Slow) -> None:
        self._broker = broker
        self._log = broker.store.log
        self._slow = slow
        self._host = broker.store.settings.store_host.hex().upper().encode()
        self._targets: dict[str, list[ConsumeQueue]] = {}
        self._batch_shapes: dict[str, PropertyShapes] = {}
        # Messages of this read that are not staged yet, the opaques (None: one-way) that wait for them, and the
        # answers of what is staged already.
        self._items: list[Item] = []
        self._waiting: list[int | None] = []
        self._acks: list[Ack] = []
        # The accelerator's part: topics as it wants them, and answers it has already written.
        self._bulk_topics: dict[bytes, tuple[tuple[ConsumeQueue, ...], bytes, int, str]] = {}
        self._done: list[bytes] = []
        self._ends: list[bytes] = []
        self.prepared: Prepared | None = None
        self.delayed: Prepared | None = None
        self.configure()
        broker.topics.on_change.append(lambda name, _: self._forget(name))

    def configure(self) -> None:
        """Takes over what requests only look up. Called again when the configuration changed."""
        config = self._broker.config
        # Whether a larger body, with its properties, fits into a log file is for the plain path to find out.
        file_bytes = self._broker.store.settings.commit_log_file_bytes
        self._max_body = min(config.max_message_size, file_bytes - MAX_PROPERTIES_BYTES - LARGEST_HEAD_BYTES)
        self._shapes = SendShapes(config.broker_cluster_name)
        self._batch_shapes.clear()
        self._targets.clear()
        traced = b"true" if config.trace_on else b"false"
        region = msgspec.json.encode(config.region_id)
        parts = (
            b'{"code":0,"extFields":{"MSG_REGION":' + region + b',"TRACE_ON":"' + traced + b'","msgId":"',
            b'"},"flag":1,"language":"' + LANGUAGE.encode() + b'","opaque":',
            b',"serializeTypeCurrentRPC":"JSON","version":' + str(VERSION).encode() + b"}",
        )
        self._ack = (
            parts[0].replace(b"%", b"%%")
            + b'%b","queueId":"%d","queueOffset":"%d%b'
            + parts[1]
            + b"%d"
            + parts[2]
        )
        self._bulk_settings = (
            self._max_body,
            config.max_frame_bytes,
            self._broker.store.settings.store_host,
            b"CLUSTER\x01" + config.broker_cluster_name.encode(),
            self._host,
            *parts,
        )
        self._bulk_topics.clear()

    def _forget(self, name: str) -> None:
        self._targets.pop(name, None)
        self._bulk_topics.pop(name.encode(), None)

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
        if queues:
            first = queues[0]
            self._bulk_topics[name.encode()] = (
                tuple(queues),
                first.topic_part,
                first.prefix_hash & 0xFFFFFFFF,
                name,
            )
        return queues

    def slow(self, conn: Connection, data: bytes, start: int, stop: int) -> None:
        """What is collected goes first: the plain path commits for itself, and order within a connection is kept."""
        if self._items or self._acks or self._log.staged.units:
            self.finish(conn)
        self._slow(conn, data, start, stop)

    # --- many frames at once ----------------------------------------------------------------------------------

    def bulk(self, conn: Connection, data: bytes, start: int, stop: int) -> int:
        """What the accelerator can take of this read; the rest comes frame by frame."""
        if accel.stage_frames is None or self._broker.store.fault is not None or not self._bulk_topics:
            return start
        log = self._log
        if self._items:
            # Order within a connection is kept; a failure here is found again, and answered, by `finish`.
            return start
        store_ms = log.begin()
        taken = accel.stage_frames(
            data,
            start,
            stop,
            self._bulk_topics,
            self._bulk_settings,
            log.position,
            log.records_end,
            store_ms,
            conn.peer_bytes,
        )
        if taken is None:
            return start
        reached, position, records, answers, queues, hashes, offsets, counts = taken
        log.extend([records], position)
        log.staged.take(queues)
        if hashes:
            log.staged.index.append(Hashes(hashes, offsets))
        if answers:
            self._done.append(answers)
        put = self._broker.stats.put
        for topic, count, size in counts:
            put(topic, count, size)
        return int(reached)

    # --- single messages --------------------------------------------------------------------------------------

    def v2(self, conn: Connection, data: bytes, start: int, header_end: int, stop: int) -> None:
        try:
            header = _decode_v2(data[start + 4 : header_end])
        except HOT_ERRORS:
            self.slow(conn, data, start, stop)
            return
        f = header.extFields
        queues = self._targets.get(f.b) or self._queues(f.b)
        if (
            queues is None
            or not 0 <= f.e < len(queues)
            or header.flag & 1
            or f.j
            or f.m
            or stop - header_end > self._max_body
        ):
            self.slow(conn, data, start, stop)
            return
        opaque = None if header.flag & 2 else header.opaque
        if not f.f & _PLAIN_SYS_FLAGS:
            if self._collect(queues[f.e], data[header_end:stop], f.i, f.f, f.h, f.g):
                self._waiting.append(opaque)
                return
            if self._is_delayed(conn, queues[f.e], data[header_end:stop], f.i, f.f, f.h, f.g, opaque):
                return
        elif (
            f.f & SysFlag.TX_MASK == SysFlag.TX_PREPARED
            and self.prepared is not None
            and self.prepared(conn, queues[f.e], data[header_end:stop], f.i, f.f, f.h, f.g, opaque)
        ):
            return
        self.slow(conn, data, start, stop)

    def v1(self, conn: Connection, data: bytes, start: int, header_end: int, stop: int) -> None:
        try:
            header = _decode_v1(data[start + 4 : header_end])
        except HOT_ERRORS:
            self.slow(conn, data, start, stop)
            return
        f = header.extFields
        queues = self._targets.get(f.topic) or self._queues(f.topic)
        if (
            queues is None
            or not 0 <= f.queue_id < len(queues)
            or header.flag & 1
            or f.reconsume_times
            or f.batch
            or f.sys_flag & _PLAIN_SYS_FLAGS
            or stop - header_end > self._max_body
        ):
            self.slow(conn, data, start, stop)
            return
        opaque = None if header.flag & 2 else header.opaque
        message = (data[header_end:stop], f.properties, f.sys_flag, f.flag, f.born_timestamp)
        if self._collect(queues[f.queue_id], *message):
            self._waiting.append(opaque)
        elif not self._is_delayed(conn, queues[f.queue_id], *message, opaque):
            self.slow(conn, data, start, stop)

    def _is_delayed(
        self,
        conn: Connection,
        queue: ConsumeQueue,
        body: bytes,
        text: str,
        sys_flag: int,
        flag: int,
        born_ms: int,
        opaque: int | None,
    ) -> bool:
        """Whether somebody else has staged it. What is collected comes first in the log."""
        if self.delayed is None or not ("DELAY\x01" in text or "TIMER_DEL" in text):
            return False
        if self._items:
            try:
                self._stage_items(conn)
            except OSError as error:
                self.fail(conn, error, [] if opaque is None else [opaque])
                return True
        return self.delayed(conn, queue, body, text, sys_flag, flag, born_ms, opaque)

    def _collect(
        self, queue: ConsumeQueue, body: bytes, text: str, sys_flag: int, flag: int, born_ms: int
    ) -> bool:
        """False when the message is not plain."""
        found = text.find(UNIQUE)
        if found >= 0:
            end = found + UNIQUE_CHARS + ID_CHARS
            shape = self._shapes.known.get((text[:found], text[end:]))
            if shape is not None:
                unique = text[found + UNIQUE_CHARS : end]
                if unique and unique.isascii() and "\x02" not in unique:
                    key = unique.encode()
                    self._items.append(
                        (
                            queue,
                            body,
                            shape.before + key + shape.behind,
                            sys_flag,
                            flag,
                            born_ms,
                            shape.tags_code,
                            key,
                            None,
                        )
                    )
                    return True
        plain = self._shapes.learn(text)
        if plain is None:
            return False
        properties, tags_code, key, more = plain
        self._items.append((queue, body, properties, sys_flag, flag, born_ms, tags_code, key, more))
        return True

    # --- batches ----------------------------------------------------------------------------------------------

    def batch(self, conn: Connection, data: bytes, start: int, header_end: int, stop: int) -> None:
        try:
            header = _decode_v2(data[start + 4 : header_end])
        except HOT_ERRORS:
            self.slow(conn, data, start, stop)
            return
        f = header.extFields
        queues = self._targets.get(f.b) or self._queues(f.b)
        shapes = self._batch_shapes.get(f.i) or self._outer_shapes(f.i)
        body = data[header_end:stop]
        if (
            queues is None
            or shapes is None
            or not 0 <= f.e < len(queues)
            or header.flag & 1
            or not body
            or len(body) > self._max_body
            or f.j
            or f.f & _PLAIN_SYS_FLAGS
            or b"DELAY\x01" in body
            or self._broker.store.fault is not None
        ):
            self.slow(conn, data, start, stop)
            return
        queue = queues[f.e]
        try:
            self._stage_items(conn)
            queue_offset = queue.next_offset
            offsets = stage_batch(self._log, queue, body, shapes, f.f, f.g, conn.peer_bytes)
        except WireError:
            # The plain path finds the same and says what is wrong, or stores in pieces what is too large for one.
            self.slow(conn, data, start, stop)
            return
        except OSError as error:
            self.fail(conn, error, [header.opaque] if not header.flag & 2 else [])
            return
        self._broker.stats.put(f.b, len(offsets), len(body))
        if not header.flag & 2:
            host = self._host
            ids = b",".join([b"%b%016X" % (host, offset) for offset in offsets])
            self._acks.append((header.opaque, f.e, queue_offset, ids, b""))

    def _outer_shapes(self, outer: str) -> PropertyShapes | None:
        """What the properties of the batch itself add to each message; a batch that need not wait is not plain."""
        if len(outer) > 512 or any(name in outer for name in _NOT_OF_A_BATCH):
            return None
        if len(self._batch_shapes) >= _MOST_OUTER_TEXTS:
            self._batch_shapes.clear()
        cluster = "CLUSTER\x01" + self._broker.config.broker_cluster_name
        text = cluster + "\x02" + outer.strip("\x02") if outer else cluster
        shapes = self._batch_shapes[outer] = PropertyShapes(text.encode("utf-8", "replace"))
        return shapes

    # --- the end of a read ------------------------------------------------------------------------------------

    def _stage_items(self, conn: Connection) -> None:
        items = self._items
        if not items:
            return
        waiting = self._waiting
        offsets, queue_offsets = stage_many(self._log, items, conn.peer_bytes)
        self._items = []
        self._waiting = []
        host, acks, stats = self._host, self._acks, self._broker.stats
        topic, count, size = items[0][0].topic, 0, 0
        for item, opaque, offset, queue_offset in zip(items, waiting, offsets, queue_offsets, strict=True):
            queue = item[0]
            if queue.topic is not topic:
                stats.put(topic, count, size)
                topic, count, size = queue.topic, 0, 0
            count += 1
            size += len(item[1])
            if opaque is not None:
                acks.append((opaque, queue.queue_id, queue_offset, b"%b%016X" % (host, offset), b""))
        stats.put(topic, count, size)

    def owe(
        self, opaque: int, queue_id: int, queue_offset: int, log_offset: int, fields: bytes = b""
    ) -> None:
        """An answer for a message that somebody else has staged; it goes out with the others.

        Further fields begin with the quote that ends the one before, and end without theirs.
        """
        self._acks.append((opaque, queue_id, queue_offset, b"%b%016X" % (self._host, log_offset), fields))

    def owe_end(self, frame: bytes) -> None:
        """The answer to the end of a transaction, written already; it tells that it is stored, not how safely."""
        self._ends.append(frame)

    def finish(self, conn: Connection) -> None:
        """Writes everything of this read with one call and answers, at once or when it is on the device."""
        if not self._items and not self._log.staged.units:
            return
        store = self._broker.store
        try:
            if store.fault is not None:
                raise OSError(store.fault.reason)
            if self._items:
                self._stage_items(conn)
            end = store.commit_staged()
        except OSError as error:
            self.fail(conn, error, [])
            return
        answers, ends = self._done, self._ends
        if self._acks:
            answers += self._answers(self._acks)
            self._acks = []
        if not answers and not ends:
            return
        self._done, self._ends = [], []
        if not store.settings.sync_flush and store.copies is None:
            if ends or len(answers) > 1:
                conn.send_parts(answers + ends)
            else:
                conn.send(answers[0])
            return
        if answers:
            store.when_durable(end, lambda outcome: _durable(conn, answers, outcome))
        if ends:
            store.when_durable(end, lambda outcome: _ended(conn, ends, outcome))

    def _answers(self, acks: list[Ack]) -> list[bytes]:
        template = self._ack
        out: list[bytes] = []
        for opaque, queue_id, queue_offset, ids, fields in acks:
            header = template % (ids, queue_id, queue_offset, fields, opaque)
            size = len(header)
            out += (_prefix(size + 4, size), header)
        return out

    def fail(self, conn: Connection, error: OSError, more: list[int]) -> None:
        """Nothing of this read was stored; everybody who waits is told so."""
        if self._broker.store.fault is None or self._log.staged.units:
            self._broker.store.abandon_staged(error)
        opaques = [ack[0] for ack in self._acks]
        opaques += [opaque for opaque in self._waiting if opaque is not None]
        opaques += [reply.opaque for reply in _replies(self._done + self._ends)]
        opaques += more
        self._items, self._waiting, self._acks, self._done, self._ends = [], [], [], [], []
        for opaque in opaques:
            conn.send(encode(_refusal(opaque, str(error.strerror or error))))


def _refusal(opaque: int, remark: str) -> Command:
    return Command(ResponseCode.SERVICE_NOT_AVAILABLE, flag=1, opaque=opaque, remark=remark)


def _replies(answers: list[bytes]) -> list[Command]:
    """The answers as commands again: only for the rare case that they must not go out as they are."""
    return [decode(frame) for frame in FrameReader().feed(b"".join(answers))]


def _durable(conn: Connection, answers: list[bytes], outcome: Durable) -> None:
    if outcome is Durable.YES:
        conn.send(answers[0] if len(answers) == 1 else b"".join(answers))
        return
    for reply in _replies(answers):
        if outcome is Durable.TIMEOUT:
            reply.code = ResponseCode.FLUSH_DISK_TIMEOUT
            reply.remark = "stored, but not flushed within syncFlushTimeout"
            conn.send(encode(reply))
        elif outcome in COPY_PROBLEMS:
            reply.code, reply.remark = COPY_PROBLEMS[outcome]
            conn.send(encode(reply))
        else:
            conn.send(encode(_refusal(reply.opaque, "flushing the log failed; the broker is read-only")))


def _ended(conn: Connection, answers: list[bytes], outcome: Durable) -> None:
    if outcome is not Durable.FAILED:
        conn.send_parts(answers)
        return
    for reply in _replies(answers):
        conn.send(encode(_refusal(reply.opaque, "flushing the log failed; the broker is read-only")))
