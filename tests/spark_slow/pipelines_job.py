"""All pipelines over Spark Connect, in a process of its own: `python -m tests.spark_slow.pipelines_job NAMESRV DIR`.

Prints their reports as one line of JSON. The topics are those that `test_cluster.py` fills.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from orbitmq.spark.pipelines.analytics import analytics
from orbitmq.spark.pipelines.archive import archive
from orbitmq.spark.pipelines.dedup import dedup
from orbitmq.spark.pipelines.query import query
from orbitmq.spark.pipelines.rebuild import rebuild
from orbitmq.spark.pipelines.redrive import redrive
from orbitmq.spark.pipelines.replay import replay
from orbitmq.spark.pipelines.route import route
from orbitmq.spark.pipelines.triage import triage
from tests.spark_slow.job import connected
from tests.support.stores import GOLDEN

SQL = "SELECT count(*) AS n, count(DISTINCT body) AS bodies FROM messages"


def main(namesrv: str, directory: str) -> None:
    spark = connected("connect")
    root = Path(directory)
    kept = str(root / "archive")
    hour = timedelta(hours=1)
    span = {"start": datetime.now(UTC) - hour, "end": datetime.now(UTC) + hour}
    at = {"namesrv": namesrv}
    steps: dict[str, Callable[[], Any]] = {
        "archive": lambda: archive(spark, ["ClusterIn"], kept, per_batch=900, **at),
        "query": lambda: query(spark, SQL, ["ClusterIn"], archive=kept, **at),
        "replay": lambda: replay(spark, "ClusterIn", "ClusterBatchOut", **span, **at),
        "dedup": lambda: dedup(spark, "ClusterIn", "ClusterDedupOut", key="substring(body, 10, 1)", **at),
        "route": lambda: route(
            spark, ["ClusterIn"], "ClusterStreamOut", checkpoint=str(root / "route"), **at
        ),
        "triage": lambda: triage(spark, ["cluster_group"], **at),
        "redrive": lambda: redrive(spark, "cluster_group", where="kind LIKE 'timed out%'", **at),
        "analytics": lambda: analytics(spark, ["ClusterIn"], str(root / "report"), **span, **at),
        "rebuild": lambda: rebuild(
            spark, str(GOLDEN), str(root / "rebuilt"), index_slots=500, index_entries=400
        ),
    }
    reports = {name: asdict(step()) for name, step in steps.items()}
    print("RESULT " + json.dumps(reports, default=str), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
