"""Brokers without sockets, side by side: the same frames go through different ways of taking a send."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any, cast

from orbitmq import accel
from orbitmq.broker.broker import Broker
from orbitmq.broker.gateway import Gateway
from orbitmq.broker.send import SendHandler
from orbitmq.net.connection import Connection
from orbitmq.net.limits import Limits
from orbitmq.net.listener import ConnectionRegistry
from orbitmq.net.service import RequestService
from orbitmq.store.disk import Disk, StrPath
from orbitmq.store.log_scan import scan_segment
from orbitmq.wire.command import Command, decode
from orbitmq.wire.frame import FrameReader
from orbitmq.wire.message import Message, decode_record
from tests.broker.admin.world import World

PEERS = ("10.1.2.3:4567", "[2001:db8::7]:4567")
TOPIC = "Twin"
QUEUES = 3
LOG_FILE_BYTES = 1 << 20  # of the world's store


class HastyDisk(Disk):
    """Waits for no device: what is compared here is what was written, not what survives."""

    def fdatasync(self, fd: int) -> None:
        return

    def fsync_dir(self, path: StrPath) -> None:
        return


class Wire(asyncio.Transport):
    """The socket under a connection: keeps what is written to it."""

    def __init__(self, peer: str) -> None:
        super().__init__()
        host, _, port = peer.rpartition(":")
        self._names = {"peername": (host.strip("[]"), int(port)), "sockname": ("127.0.0.1", 10911)}
        self.closed = False
        self._written: list[bytes] = []

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._names.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._written.append(bytes(data))

    def abort(self) -> None:
        self.closed = True

    def answers(self) -> list[Command]:
        frames = FrameReader().feed(b"".join(self._written))
        self._written.clear()
        return [decode(frame) for frame in frames]


class PlainGateway:
    """All frames go to the general way."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def frame(self, conn: Connection, data: bytes, start: int, stop: int) -> None:
        RequestService.frame(self._gateway, conn, data, start, stop)

    def bulk(self, conn: Connection, data: bytes, start: int, stop: int) -> int:
        return start

    def read_done(self, conn: Connection) -> None:
        return

    def connection_lost(self, conn: Connection) -> None:
        return


class Side:
    """A broker whose sends go the fast way where they can, or always the plain way.

    `accelerate` says whether the fast way may use the accelerator; None leaves that to the test.
    """

    def __init__(self, root: Path, *, hot: bool, accelerate: bool | None = None) -> None:
        self.world = World(root, disk=HastyDisk())
        self.world.config.mapped_file_size_commit_log = LOG_FILE_BYTES
        self.gateway = Gateway(cast(Broker, self.world), SendHandler(cast(Broker, self.world), Random(7)))
        cast(Any, self.world).offset_moved = lambda *place: None
        self.add_topic(TOPIC, QUEUES)
        self._accelerate = accelerate
        self._service = self.gateway if hot else PlainGateway(self.gateway)
        self._conns: dict[Wire, Connection] = {}

    def add_topic(self, name: str, queues: int) -> None:
        self.world.topic(name, queues)
        self.gateway.hot_send._queues(name)  # as after the topic's first message

    def leave_room(self, room: int) -> None:
        """The log goes on where so many bytes are left of its first file."""
        self.world.store.log.start_at(LOG_FILE_BYTES - room)

    def read(self, wire: Wire, frames: list[bytes]) -> list[Command]:
        """One network read with these frames."""
        conn = self._conns.get(wire)
        if conn is None:
            limits = Limits()
            conn = self._conns[wire] = Connection(self._service, limits, ConnectionRegistry(limits))
            conn.connection_made(wire)
        built = accel.stage_frames
        if self._accelerate is False:
            accel.stage_frames = None
        try:
            conn.data_received(b"".join(frames))
        finally:
            accel.stage_frames = built
        return wire.answers()

    def messages(self, start: int = 0) -> list[Message]:
        log = self.world.store.log
        found = []
        for base in log.series.bases:
            buf = log.series.map(base)
            records = scan_segment(buf, base, max(start - base, 0))
            found += [decode_record(buf, record.offset - base) for record in records]
        return found

    def units(self) -> dict[tuple[str, int], list[int]]:
        """Tag hashes by queue."""
        return {name: [unit[2] for unit in units] for name, units in self.whole_units().items()}

    def whole_units(self) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
        units = {}
        for queue in self.world.store.all_queues():
            if queue.max_offset:
                found = [queue.unit(offset) for offset in range(queue.max_offset)]
                units[queue.topic, queue.queue_id] = [unit for unit in found if unit]
        return units

    def log_bytes(self, start: int) -> bytes:
        """The log from there to its end, and a little of what lies behind it."""
        log = self.world.store.log
        ends = [min(log.position + 64 - base, LOG_FILE_BYTES) for base in log.series.bases]
        return b"".join(
            log.series.map(base)[max(start - base, 0) : end]
            for base, end in zip(log.series.bases, ends, strict=True)
        )

    def index_files(self) -> dict[str, bytes]:
        """Names and content, after everything pending has been brought in."""
        store = self.world.store
        store.dispatcher.write_out()
        assert store.index is not None
        return {Path(path).name: Path(path).read_bytes() for path in store.index.paths}

    def found_by(self, topic: str, key: str) -> list[int]:
        """Numbers, in the order of the log, of the messages that the key index names for this key."""
        places = [message.physical_offset for message in self.messages()]
        hits = self.world.store.query_keys(topic, key, 0, 1 << 62, 64)
        return sorted(places.index(hit) for hit in hits)

    def close(self) -> None:
        self.world.store.close()


def essence(message: Message) -> tuple[object, ...]:
    """Everything but the place in the log, which follows from the lengths of property texts."""
    return (
        *(message.topic, message.queue_id, message.flag, message.queue_offset, message.sys_flag),
        *(message.born_ms, message.born_host, message.store_ms, message.store_host),
        *(message.reconsume_times, message.prepared_offset, message.body, message.body_crc),
        message.properties,
    )


def answer_essence(answer: Command) -> tuple[object, ...]:
    ext = {name: value for name, value in answer.ext.items() if name != "msgId"}
    ids = answer.ext.get("msgId", "").split(",") if answer.code == 0 else []
    return answer.code, answer.flag, answer.opaque, ext, answer.remark, answer.codec, len(ids)
