"""What a message costs inside the broker: `python -m bench.hotpath [--messages 100000] [--sizes 128,1024]`.

No sockets and no client: reads are made beforehand and handed to a connection, so that only the broker's own work on
the event loop is timed, as CPU time. Every line is measured twice, plain (ORBITMQ_PURE=1) and with the accelerator.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Any

from orbitmq import accel
from orbitmq.broker.broker import Broker
from orbitmq.broker.topic_config import TopicConfig
from orbitmq.config import BrokerConfig
from orbitmq.net.connection import Connection
from orbitmq.net.limits import Limits
from orbitmq.net.listener import ConnectionRegistry
from orbitmq.wire.batch import encode_batch
from orbitmq.wire.codes import RequestCode

TOPIC = "HotPath"
QUEUES = 8
SENDS_PER_READ = 64
BATCH = 100
PULLED = 32
LIMIT_S = 600
_PREFIX = Struct(">II")

Reads = tuple[Sequence[bytes], int]
"""What is handed over, and how many messages are in it."""


class Sink(asyncio.Transport):
    """Where answers go: nowhere."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 5555) if name in ("peername", "sockname") else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def write(self, data: bytes | bytearray | memoryview) -> None:
        return

    def abort(self) -> None:
        raise AssertionError("the broker did not like what it was sent")


def frame(code: int, ext: dict[str, str], body: bytes, opaque: int) -> bytes:
    """As the Java client writes it."""
    fields = {"code": code, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": opaque}
    header = json.dumps({**fields, "serializeTypeCurrentRPC": "JSON", "version": 407}, separators=(",", ":"))
    return _PREFIX.pack(4 + len(header) + len(body), len(header)) + header.encode() + body


def properties(number: int) -> str:
    return f"UNIQ_KEY\x01C0000202{number:024X}\x02WAIT\x01true"


def send_frame(code: int, number: int, text: str, body: bytes) -> bytes:
    usual = {
        "a": "PG",
        "b": TOPIC,
        "c": "TBW102",
        "d": "4",
        "f": "0",
        "g": "1794773223387",
        "h": "0",
        "j": "0",
    }
    batch = "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false"
    ext = {**usual, "e": str(number % QUEUES), "i": text, "k": "false", "m": batch, "n": "broker-a"}
    return frame(code, ext, body, number)


def sends(messages: int, size: int) -> Reads:
    """Pipelined sends, as many in one read as a busy client brings."""
    body = bytes(size)
    frames = [
        send_frame(RequestCode.SEND_MESSAGE_V2, n, properties(n), body)
        for n in range(messages - messages % SENDS_PER_READ)
    ]
    return [b"".join(frames[at : at + SENDS_PER_READ]) for at in range(0, len(frames), SENDS_PER_READ)], len(
        frames
    )


def batches(messages: int, size: int) -> Reads:
    body = bytes(size)
    reads = []
    for number in range(messages // BATCH):
        items = [(0, body, properties(number * BATCH + n).encode()) for n in range(BATCH)]
        reads.append(send_frame(RequestCode.SEND_BATCH_MESSAGE, number, "WAIT\x01true", encode_batch(items)))
    return reads, len(reads) * BATCH


def pulls(messages: int, size: int) -> Reads:
    """Every queue from its start; the messages have been stored by `batches`."""
    each = messages // BATCH // QUEUES * BATCH
    usual = {
        "consumerGroup": "CG",
        "topic": TOPIC,
        "maxMsgNums": str(PULLED),
        "sysFlag": "4",
        "commitOffset": "0",
    }
    usual |= {"suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "1", "expressionType": "TAG"}
    reads = [
        frame(RequestCode.PULL_MESSAGE, {**usual, "queueId": str(queue), "queueOffset": str(at)}, b"", at)
        for queue in range(QUEUES)
        for at in range(0, each, PULLED)
    ]
    return reads, each * QUEUES


KINDS: dict[str, Callable[[int, int], Reads]] = {"send": sends, "batch": batches, "pull": pulls}


async def cost_us(kind: str, messages: int, size: int, directory: Path) -> float:
    """Microseconds of CPU per message, what is written behind included."""
    settings = {"storePathRootDir": str(directory), "listenPort": "0", "listenHost": "127.0.0.1"}
    config, _ = BrokerConfig.from_properties(
        {**settings, "flushDiskType": "ASYNC_FLUSH", "haListenPort": "0"}
    )
    config.fill_blanks(host_name="bench", ip="127.0.0.1")
    broker = Broker(config, lambda: time.time_ns() // 1_000_000)
    await broker.start()
    try:
        broker.topics.put(TopicConfig(TOPIC, QUEUES, QUEUES), broker.clock())
        connection = Connection(broker.gateway, Limits(), ConnectionRegistry(Limits()))
        connection.connection_made(Sink())
        if kind == "pull":
            for read in batches(messages, size)[0]:
                connection.data_received(read)
        reads, count = KINDS[kind](messages, size)
        started = time.process_time()
        for number, read in enumerate(reads):
            connection.data_received(read)
            if number % 500 == 0:
                await asyncio.sleep(0)
        broker.store.dispatcher.drain_index()
        return (time.process_time() - started) / count * 1e6
    finally:
        await broker.stop()


def measure(args: argparse.Namespace) -> Iterator[tuple[str, int, float]]:
    for size in args.sizes:
        for kind in args.kinds:
            with tempfile.TemporaryDirectory() as directory:
                yield kind, size, asyncio.run(cost_us(kind, args.messages, size, Path(directory)))


def measured_elsewhere(pure: bool, argv: Sequence[str]) -> list[tuple[str, int, float]]:
    """The choice is made when the modules are imported: each way gets a process of its own."""
    env = {**os.environ, "ORBITMQ_PURE": "1" if pure else ""}
    command = [sys.executable, "-m", "bench.hotpath", *argv, "--one-way"]
    ended = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S)
    return [(kind, size, cost) for kind, size, cost in map(json.loads, ended.stdout.splitlines())]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.hotpath", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument(
        "--sizes", type=lambda text: [int(size) for size in text.split(",")], default=[128, 1024]
    )
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--one-way", action="store_true", help="only as this process is; JSON lines")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> None:
    args = parse(argv)
    if args.one_way:
        for row in measure(args):
            print(json.dumps(row), flush=True)
        return
    plain = measured_elsewhere(True, argv)
    fast = measured_elsewhere(False, argv) if accel.stage_frames is not None else []
    print(f"{'':12}{'plain':>10}{'accelerated':>14}   µs of CPU per message")
    for number, (kind, size, cost) in enumerate(plain):
        other = f"{fast[number][2]:>14.2f}" if fast else f"{'not built':>14}"
        print(f"{kind:6}{size:>6}{cost:>10.2f}{other}")


if __name__ == "__main__":
    main(sys.argv[1:])
