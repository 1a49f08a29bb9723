"""How late timers come: `python -m bench.timers [--rate 10000] [--seconds 10] [--pending 100000]`.

First so many timers are sent that wait for days, and the broker's memory is noted; then `rate` timers fall
due every second for some seconds, and each one's lateness is the difference between its record's store time
and the time asked for. Ends with status 1 when one is missing, early, or when more than one in a thousand is
50 ms late.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.brokers import OrbitBroker, anonymous_memory_mb
from orbitmq.client.cluster import Cluster, wall_clock_ms
from orbitmq.client.reader import offsets_at, read_range
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import encode, request
from orbitmq.wire.frame import FrameReader

TOPIC = "BenchTimers"
QUEUES = 8
LIMIT_MS = 50
DAY_MS = 86_400_000
# Requests on their way at once: enough to keep the broker busy, few enough not to hold up its loop.
WINDOW = 256
SETTLE_S = 3.0


def frames(deliver_ms: Iterator[int], body: bytes) -> Iterator[bytes]:
    for number, moment in enumerate(deliver_ms):
        properties = f"UNIQ_KEY\x01BENCH{number:027d}\x02WAIT\x01true\x02TIMER_DELIVER_MS\x01{moment}"
        ext = {
            "a": "bench",
            "b": TOPIC,
            "c": "TBW102",
            "d": str(QUEUES),
            "e": str(number % QUEUES),
            "f": "0",
            "g": str(wall_clock_ms()),
            "h": "0",
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "false",
        }
        yield encode(request(RequestCode.SEND_MESSAGE_V2, ext, body))


async def send_all(addr: str, requests: Iterator[bytes]) -> int:
    """Pipelines the requests over one connection; how many were answered."""
    host, _, port = addr.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    incoming = FrameReader()
    waiting = answered = 0
    more = True
    while more or waiting:
        while more and waiting < WINDOW:
            frame = next(requests, None)
            more = frame is not None
            if frame is not None:
                writer.write(frame)
                waiting += 1
        await writer.drain()
        if waiting:
            found = incoming.feed(await reader.read(1 << 16))
            waiting -= len(found)
            answered += len(found)
            for answer in found:
                if b'"code":0,' not in answer:
                    raise SystemExit(f"a send was refused: {bytes(answer[4:600])!r}")
    writer.close()
    await writer.wait_closed()
    return answered


async def measure(broker: OrbitBroker, args: argparse.Namespace) -> dict[str, Any]:
    async with Cluster(broker.namesrv, timeout_s=30) as cluster:
        addr = await cluster.broker_addr(next(iter((await cluster.cluster_map()).brokers)))
        body = bytes(args.size)
        idle_mb = anonymous_memory_mb(broker.pid)
        start = time.monotonic()
        far = (wall_clock_ms() + DAY_MS + n * 34 for n in range(args.pending))
        await send_all(addr, frames(far, body))
        sent_per_s = args.pending / (time.monotonic() - start)
        await asyncio.sleep(SETTLE_S)
        pending_mb = anonymous_memory_mb(broker.pid)

        count = args.rate * args.seconds
        # All of them have to be there before the first is due; half of the speed seen leaves room for a slow moment.
        begin = wall_clock_ms() + round(count / sent_per_s * 2 * 1000) + 1_000
        near = (begin + n * 1000 // args.rate for n in range(count))
        await send_all(addr, frames(near, body))
        ahead_s = (begin - wall_clock_ms()) / 1000
        if ahead_s < 0:
            raise SystemExit(
                f"sending took {-ahead_s:.1f} s longer than expected: is something else running?"
            )
        await asyncio.sleep(ahead_s + args.seconds + SETTLE_S)
        late = await read_lateness(cluster, begin)
        return {
            "rate": args.rate,
            "seconds": args.seconds,
            "pending": args.pending,
            "sent_per_s": round(sent_per_s),
            "idle_mb": round(idle_mb, 1),
            "pending_mb": round(pending_mb, 1),
            "missing": count - len(late),
            "early": sum(ms < 0 for ms in late),
            "repeated": await repeated(cluster, len(late)),
            **{f"p{name}_ms": percentile(late, share) for name, share in PERCENTILES.items()},
            "max_ms": late[-1] if late else None,
        }


PERCENTILES = {"50": 0.5, "99": 0.99, "999": 0.999}


async def read_lateness(cluster: Cluster, begin: int) -> list[int]:
    found: dict[int, int] = {}
    route = await cluster.route(TOPIC, refresh=True)
    first, last = await offsets_at(cluster, route, "first"), await offsets_at(cluster, route, "last")
    async for message in read_range(cluster, route, first, last):
        moment = int(message.properties["TIMER_DELIVER_MS"])
        if moment >= begin:
            found[len(found)] = message.store_ms - moment
    return sorted(found.values())


async def repeated(cluster: Cluster, count: int) -> int:
    route = await cluster.route(TOPIC, refresh=True)
    first, last = await offsets_at(cluster, route, "first"), await offsets_at(cluster, route, "last")
    return sum(last[queue] - first[queue] for queue in last) - count


def percentile(values: list[int], share: float) -> int | None:
    return values[min(len(values) - 1, int(len(values) * share))] if values else None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rate", type=int, default=10_000, help="timers due per second")
    parser.add_argument("--seconds", type=int, default=10, help="for so long")
    parser.add_argument(
        "--pending", type=int, default=100_000, help="timers that wait for days meanwhile, 1000 at least"
    )
    parser.add_argument("--size", type=int, default=128, help="bytes of a body")
    parser.add_argument("--flush", default="ASYNC_FLUSH", choices=("ASYNC_FLUSH", "SYNC_FLUSH"))
    args = parser.parse_args()
    args.pending = max(1_000, args.pending)
    scratch = Path(tempfile.mkdtemp(prefix="orbitmq-timers-"))
    broker = OrbitBroker(scratch / "store", {"flushDiskType": args.flush, "diskMaxUsedSpaceRatio": "95"})
    broker.start()
    try:
        result = asyncio.run(measure(broker, args))
    finally:
        broker.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps({**result, "flush": args.flush}))
    good = not result["missing"] and not result["early"] and result["p999_ms"] <= LIMIT_MS
    print(
        "good" if good else f"not good: at most {LIMIT_MS} ms late, none missing, none early", file=sys.stderr
    )
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
