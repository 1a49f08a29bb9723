"""redrive: dead letters that match a condition, sent back to the topics they came from.

Spark chooses them, tasks send them side by side, each in the way of `orbitmq dead redrive`: every copy has an id that
follows from its dead letter, and a copy that is there already is not sent again. So a run may be killed and repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from orbitmq.client.admin.dead import origin_topic
from orbitmq.client.admin.messages import message_by_offset_id, messages_by_id
from orbitmq.client.admin.redrive import redriven, redriven_id
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import NotFound, OrbitMQError
from orbitmq.client.sender import Sender
from orbitmq.spark.pipelines.command import add_range, add_read_options, new_parser, run_main
from orbitmq.spark.pipelines.triage import dead_letters

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

AT_ONCE: Final = 32
EXIT_FAILED: Final = 1
SENT, BEFORE, FAILED, WOULD = "sent", "sent before", "failed", "would be sent"
_RESULT: Final = "offset_msg_id string, topic string, outcome string, problem string"


@dataclass(frozen=True)
class RedriveReport:
    group: str
    matching: int
    sent: int
    sent_before: int
    failed: int
    topics: dict[str, int]
    failures: list[dict[str, Any]]
    dry_run: bool

    @property
    def exit_code(self) -> int:
        """As `orbitmq dead redrive` ends."""
        return EXIT_FAILED if self.failed else 0


@dataclass(frozen=True)
class RedrivePlan:
    """What a dry run finds: the same, but nothing of it has happened."""

    group: str
    matching: int
    would_be_sent: int
    sent_before: int
    would_fail: int
    topics: dict[str, int]
    failures: list[dict[str, Any]]
    dry_run: bool

    @property
    def exit_code(self) -> int:
        return EXIT_FAILED if self.would_fail else 0


def redrive(
    spark: SparkSession,
    group: str,
    *,
    namesrv: str,
    where: str | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    dry_run: bool = False,
    read: Mapping[str, str] | None = None,
) -> RedriveReport | RedrivePlan:
    """`where` is SQL over the columns of the source and origin_topic, reason and kind, as `triage` shows them."""
    letters = dead_letters(spark, [group], namesrv=namesrv, start=start, end=end, read=read)
    if where is not None:
        letters = letters.where(where)
    # Plain values only: the function is sent to workers.
    letters = letters.select("offset_msg_id")
    sent = letters.mapInArrow(_Redriver(namesrv, dry_run), _RESULT)
    rows = sent.collect()
    counts = {
        outcome: sum(row["outcome"] == outcome for row in rows) for outcome in (SENT, BEFORE, FAILED, WOULD)
    }
    topics: dict[str, int] = {}
    for row in rows:
        if row["outcome"] in (SENT, WOULD):
            topics[row["topic"]] = topics.get(row["topic"], 0) + 1
    failures = [
        {"offset_msg_id": row["offset_msg_id"], "topic": row["topic"], "problem": row["problem"]}
        for row in rows
        if row["outcome"] == FAILED
    ]
    if dry_run:
        return RedrivePlan(
            group, len(rows), counts[WOULD], counts[BEFORE], counts[FAILED], topics, failures[:20], True
        )
    return RedriveReport(
        group, len(rows), counts[SENT], counts[BEFORE], counts[FAILED], topics, failures[:20], False
    )


class _Redriver:
    """What a task does with its share of the dead letters."""

    def __init__(self, namesrv: str, dry_run: bool) -> None:
        self._namesrv = namesrv
        self._dry_run = dry_run

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        names = ["offset_msg_id", "topic", "outcome", "problem"]
        for batch in batches:
            ids = batch.column(0).to_pylist()
            done = asyncio.run(self._send_all(ids))
            columns = [pa.array([row[at] for row in done], pa.string()) for at in range(len(names))]
            yield pa.RecordBatch.from_arrays(columns, names=names)

    async def _send_all(self, ids: list[str]) -> list[tuple[str, str | None, str, str | None]]:
        async with Cluster(self._namesrv, timeout_s=10) as cluster:
            sender = Sender(cluster, "orbitmq-redrive")
            free = asyncio.Semaphore(AT_ONCE)

            async def one(offset_id: str) -> tuple[str, str | None, str, str | None]:
                async with free:
                    topic: str | None = None
                    try:
                        message = await message_by_offset_id(cluster, offset_id)
                        topic = origin_topic(message)
                        if topic is None:
                            return offset_id, None, FAILED, "it does not tell which topic it came from"
                        if await cluster.find_route(topic) is None:
                            return offset_id, topic, FAILED, f"topic '{topic}' does not exist any more"
                        if await _is_there(cluster, topic, redriven_id(message)):
                            return offset_id, topic, BEFORE, None
                        if self._dry_run:
                            return offset_id, topic, WOULD, None
                        await sender.send(redriven(message, topic))
                    except OrbitMQError as error:
                        return offset_id, topic, FAILED, str(error)
                    return offset_id, topic, SENT, None

            return list(await asyncio.gather(*map(one, ids)))


async def _is_there(cluster: Cluster, topic: str, msg_id: str) -> bool:
    try:
        await messages_by_id(cluster, topic, msg_id)
    except NotFound:
        return False
    return True


def main(argv: Sequence[str] | None = None) -> int:
    parser = new_parser("redrive", "Send dead letters that match a condition back to their topics.")
    parser.add_argument("group", metavar="GROUP", help="the consumer group")
    parser.add_argument(
        "--where", metavar="SQL", help="\"kind LIKE '%%timed out%%' AND reconsume_times < 20\""
    )
    add_range(parser, "died at or after this time", "died before this time")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be sent")
    add_read_options(parser)
    return run_main(parser, redrive, argv)


if __name__ == "__main__":
    raise SystemExit(main())
