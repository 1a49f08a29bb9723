"""Makes the two pictures of docs/spark.md anew: `python -m scripts.spark_pictures [--minutes 5] [--into DIR]`.

A server of its own gets the traffic of a shop for some minutes, while one of its three groups is slow for a fifth of
the time; then the analytics report about it, and Chromium (`apt-get install chromium`) takes a picture of the page.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import random
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import orbitmq
from orbitmq.client.message_trace import MessageTrace
from scripts.serving import ServerFailed, serving

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PAGE_SIZE = (850, 1100)
CUSTOMERS = 400
# Per second at the height of the day.
PEAKS = {"orders": 42.0, "payments": 18.0}
PRODUCERS = {"orders": "shop-web", "payments": "shop-checkout"}
TAGS = {"orders": ("created", "paid", "shipped", "cancelled"), "payments": ("card", "invoice")}
REPORTED_S = 2.0
SLOW_S, USUAL_S = 0.13, 0.010


async def shop(namesrv: str, length_s: float, out: Path) -> None:
    start = datetime.now(UTC)
    chance = random.Random(7)
    began = time.monotonic()

    def share_done() -> float:
        return (time.monotonic() - began) / length_s

    async def produce(client: orbitmq.Client, topic: str) -> None:
        producer, under_way = client.producer(PRODUCERS[topic]), set[asyncio.Task[object]]()
        while share_done() < 1:
            rate = PEAKS[topic] * (0.15 + 0.85 * math.sin(math.pi * share_done()) ** 2)
            await asyncio.sleep(chance.expovariate(rate))
            # A few customers are behind most of the orders.
            customer = (int(chance.paretovariate(0.8)) - 1) % CUSTOMERS
            task = asyncio.create_task(
                producer.send(
                    topic,
                    chance.randbytes(chance.randint(100, 400)),
                    tag=chance.choice(TAGS[topic]),
                    keys=[f"customer-{customer:03}"],
                )
            )
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)

    async def consume(client: orbitmq.Client, group: str, topic: str) -> None:
        async def handle(_: orbitmq.Message) -> None:
            slow = group == "mailer" and 0.35 < share_done() < 0.55
            await asyncio.sleep(SLOW_S if slow else chance.uniform(0, 2 * USUAL_S))

        async with client.consumer(group, topic, start="earliest", concurrency=1) as consumer:
            await consumer.run(handle)

    async with (
        orbitmq.connect(namesrv, interceptors=[MessageTrace()]) as senders,
        orbitmq.connect(namesrv, interceptors=[MessageTrace()]) as readers,
    ):
        for topic in PEAKS:
            await senders.admin.create_topic(topic, queues=4)
        groups = (("billing", "orders"), ("mailer", "orders"), ("ledger", "payments"))
        reading = [asyncio.create_task(consume(readers, group, topic)) for group, topic in groups]
        await asyncio.gather(*(produce(senders, topic) for topic in PEAKS))
        end = datetime.now(UTC)
        await asyncio.sleep(REPORTED_S)
        # While the groups are connected: what they ask for is known then.
        await asyncio.to_thread(report, namesrv, start, end, out)
        for task in reading:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def screenshot(browser: str, page: Path, picture: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="orbitmq-chromium-") as profile:
        subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                f"--window-size={PAGE_SIZE[0]},{PAGE_SIZE[1]}",
                f"--screenshot={picture}",
                page.resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )


def shrink(picture: Path) -> None:
    """To few colours, of which it has not many more: a repository keeps every version."""
    from PIL import Image

    with Image.open(picture) as image:
        image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(picture, optimize=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long the shop is open")
    parser.add_argument("--into", type=Path, default=IMAGES, metavar="DIR", help="where the pictures go")
    parser.add_argument("--report", type=Path, metavar="DIR", help="keep the whole report there")
    args = parser.parse_args()
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        parser.error(f"none of {', '.join(BROWSERS)} is installed; run `apt-get install chromium`")
    with tempfile.TemporaryDirectory(prefix="orbitmq-pictures-") as scratch:
        out: Path = args.report or Path(scratch) / "report"
        try:
            with serving(Path(scratch) / "data", {"flushDiskType": "ASYNC_FLUSH"}) as server:
                asyncio.run(shop(server.namesrv, args.minutes * 60, out))
        except ServerFailed as failed:
            print(f"pictures: the server failed: {failed}", file=sys.stderr)
            return 1
        screenshot(browser, out / "report.html", args.into / "spark-report.png")
        shutil.copyfile(out / "plots" / "hot_keys.png", args.into / "spark-hot-keys.png")
        for name in ("spark-report.png", "spark-hot-keys.png"):
            shrink(args.into / name)
    return 0


def report(namesrv: str, start: datetime, end: datetime, out: Path) -> None:
    from orbitmq.spark import session
    from orbitmq.spark.pipelines.analytics import analytics

    spark = session("local[2]", "pictures")
    try:
        analytics(spark, list(PEAKS), str(out), namesrv=namesrv, start=start, end=end, step="10 seconds")
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
