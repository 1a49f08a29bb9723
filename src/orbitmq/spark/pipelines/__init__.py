"""Ready pipelines: what users of a queue otherwise write themselves, as functions, commands and jobs to submit.

In: a SparkSession and plain values. Out: a frozen report that tells what was done.

Each module has a function of its own name for programs and a `main` for `orbitmq spark NAME` and `spark-submit`.
They use the formats `orbitmq` and `orbitmq-store` like any other user, and what `client.admin` can do already.
"""

from __future__ import annotations

from typing import Final

PIPELINES: Final[dict[str, str]] = {
    "archive": "Topics to Parquet files by topic and day, exactly once; go on where the last run ended.",
    "query": "SQL over the archive and the live topics as one table.",
    "analytics": "Throughput, latency, backlog, hot keys, tags, slow consumers: tables, plots and a report.",
    "triage": "Dead letters grouped by what went wrong.",
    "redrive": "Send dead letters that match a condition back to their topics.",
    "replay": "Send a range of time of a topic once more, to another topic.",
    "dedup": "Copy a topic, one message for each key.",
    "route": "Forward topics to another topic or cluster, changed by SQL, without running in circles.",
    "rebuild": "Make consume queues and key index anew from a commit log.",
}
