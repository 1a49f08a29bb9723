"""Jobs that send something once, however often they are run: what makes two runs the same job, and what a repeat does.

A job is recognised by the marker that the sink leaves at the target (decision 010). Without a name of its own it is
known by all that says what it sends: topics, range, conditions. A range like `2h` to `1h` ago is another one in every
run, so each run says which absolute range it has taken, or is given a name.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from orbitmq.client.cluster import Cluster
from orbitmq.spark.pipelines.command import Tell, epoch_ms
from orbitmq.spark.pipelines.tables import on_cluster, with_given
from orbitmq.spark.sink_commit import Committer, Outcome
from orbitmq.spark.sink_markers import DONE, Marker, Markers
from orbitmq.spark.sink_options import parse_sink_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A job is known by what it sends and where; that it is sent once rests on these.
_OF_THE_JOB: Final = ("topic", "delivery", "txnAppId", "txnVersion")
JOB_HELP: Final = (
    "a name: runs with the same one are one job, whatever their range; otherwise the range decides"
)
AGAIN_HELP: Final = "also if the same job was done before"


@dataclass(frozen=True)
class Written:
    rows: int | None
    """Those that this run has sent; None where an earlier run decided which, and this one only made them visible."""
    sent_before: bool = False
    """The same job had been done before."""
    finished: bool = False
    """The same job had been begun before, and its run had died: what that one had decided on is visible now."""

    @property
    def is_new(self) -> bool:
        return not (self.sent_before or self.finished)


def job_id(kind: str, *parts: object) -> str:
    """A name that is the same for the same job."""
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
    return f"{kind}-{digest}"


def whole_ms(moment: datetime) -> datetime:
    """The first whole millisecond from then on. Brokers store no finer times, so this range printed is exactly this."""
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=-(-_micros(moment) // 1000))


def _micros(moment: datetime) -> int:
    return (moment.astimezone(UTC) - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def tell_range(tell: Tell, start: datetime | None, end: datetime, job: str | None) -> None:
    """Which messages a run takes, and how to run this job and no other once more."""
    since = f"from {start.isoformat()} on, " if start else ""
    tell(f"messages stored {since}before {end.isoformat()}")
    repeat = f"--job {shlex.quote(job)}" if job else f"--until {epoch_ms(end)}"
    if start and not job:
        repeat = f"--from {epoch_ms(start)} {repeat}"
    tell(f"to repeat this job, should it be interrupted: the same command with {repeat}")


def write_once(
    rows: DataFrame,
    namesrv: str,
    app_id: str,
    *,
    again: bool = False,
    write: Mapping[str, str] | None = None,
    tell: Tell = lambda text: None,
) -> Written:
    """Sends a table, all or nothing; a job that was done before sends nothing unless it is to be done again.

    What a run that died in the middle of its commit had decided on is made visible, and nothing else: its marker lists
    it, so the rows need not be read again, nor be the same ones.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    async def newest(cluster: Cluster) -> Marker | None:
        return await Markers(cluster, app_id).newest()

    own = {"namesrv": namesrv, "txnAppId": app_id}
    given = with_given(own, write, "--write", _OF_THE_JOB)
    last = on_cluster(namesrv, newest)
    if last is not None and last.state != DONE:
        tell(
            "an earlier run of this job has decided what to send: that is finished, and nothing is sent anew"
        )
        _finish(given, last)
        return Written(None, finished=True)
    if last is not None and not again:
        return Written(0, sent_before=True)
    version = 0 if last is None else last.batch + 1
    observation = Observation(app_id)
    (
        rows.observe(observation, F.count(F.lit(1)).alias("rows"))
        .write.format("orbitmq")
        .mode("append")
        .options(**given, txnVersion=str(version))
        .save()
    )
    return Written(int(observation.get.get("rows", 0)))


def _finish(given: Mapping[str, str], marker: Marker) -> None:
    """Makes visible what a marker lists, and rolls back what else the dead run has left."""
    options = parse_sink_options({**given, "txnVersion": str(marker.batch)})

    async def work(cluster: Cluster) -> Outcome:
        return await Committer(cluster, options, given["txnAppId"]).commit(marker.batch, [])

    on_cluster(options.namesrv, work, timeout_s=options.request_timeout_s)
