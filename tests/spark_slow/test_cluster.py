"""Batch, stream and sink on a real standalone cluster, by spark-submit, and over Spark Connect."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from orbitmq.spark.extension import EXTENSION, extension_jar
from orbitmq.spark.java import find_java
from tests.spark.archived import archived_bodies
from tests.spark.reading_back import bodies
from tests.spark.topics import Out, Topics, numbered
from tests.spark_slow.standalone import ROOT, StandaloneCluster, environment
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.slow

COUNT = 2000
LIMIT_S = 900


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "server", flushDiskType="ASYNC_FLUSH") as running:
        make_topics(running.broker_addr)
        yield running


def make_topics(broker_addr: str) -> None:
    topics = Topics(broker_addr)
    for topic in ("ClusterIn", "ClusterBatchOut", "ClusterStreamOut", "ClusterDedupOut"):
        topics.create(topic, 4)
    for queue_id in range(4):
        topics.fill("ClusterIn", queue_id, numbered(COUNT // 4, queue_id * COUNT // 4))
    topics.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


class HasNamesrv(Protocol):
    @property
    def namesrv(self) -> str: ...


def run_job(where: str, server: HasNamesrv, directory: Path) -> dict[str, object]:
    return result_of("tests.spark_slow.job", where, server.namesrv, str(directory))


def result_of(module: str, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(
        command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return result


def check(server: HasNamesrv, result: dict[str, object], *, in_columns: bool) -> None:
    assert result == {
        "batch": [COUNT, COUNT, COUNT * 16],
        "in_columns": in_columns,
        "stream0": COUNT,
        "stream1": 0,
    }
    expected = Counter(message.body for message in numbered(COUNT))
    assert bodies(server.namesrv, "ClusterBatchOut") == expected
    assert bodies(server.namesrv, "ClusterStreamOut") == expected


def test_on_a_standalone_cluster(cluster: StandaloneCluster, server: ServerProcess, tmp_path: Path) -> None:
    check(server, run_job(cluster.master, server, tmp_path), in_columns=True)
    works = [log for log in cluster._directory.glob("work*/app-*/*/stderr") if log.stat().st_size]
    assert {log.parts[-4] for log in works} == {"work0", "work1"}, "both workers ran tasks"


@pytest.mark.parametrize("in_columns", [False, True])
def test_by_spark_submit_with_the_pipelines_file(
    cluster: StandaloneCluster, server: ServerProcess, tmp_path: Path, in_columns: bool
) -> None:
    import pyspark

    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    pipeline = ROOT / "src" / "orbitmq" / "spark" / "pipelines" / "archive.py"
    out = tmp_path / "archive"
    command = [
        str(submit),
        "--master",
        cluster.master,
        "--conf",
        "spark.driver.host=127.0.0.1",
    ]
    if in_columns:
        jar = extension_jar(find_java(os.environ), os.environ)
        command += ["--jars", str(jar), "--conf", f"spark.sql.extensions={EXTENSION}"]
    command += [str(pipeline)]
    command += [str(out), "-t", "ClusterIn", "-n", server.namesrv, "--json"]
    done = subprocess.run(
        command, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.strip().splitlines()[-1])
    assert (report["messages"], report["in_archive"]) == (COUNT, {"ClusterIn": COUNT})
    assert "Cannot use" not in done.stderr, "Spark says so of an extension that it does not find"


def test_over_spark_connect(server: ServerProcess, tmp_path: Path) -> None:
    assert importlib.util.find_spec("grpc") is not None, "Spark Connect needs pyspark[connect]"
    check(server, run_job("connect", server, tmp_path), in_columns=False)


def test_pipelines_over_spark_connect(server: ServerProcess, tmp_path: Path) -> None:
    topics = Topics(server.broker_addr)
    topics.create("%DLQ%cluster_group", 1)
    letters = [
        Out(b"t%d" % n, {"RETRY_TOPIC": "ClusterDedupOut", "DLQ_REASON": f"timed out after {n} ms"})
        for n in range(6)
    ]
    topics.fill("%DLQ%cluster_group", 0, letters)
    topics.close()
    said = result_of("tests.spark_slow.pipelines_job", server.namesrv, str(tmp_path))
    assert (said["archive"]["messages"], said["archive"]["in_archive"]) == (COUNT, {"ClusterIn": COUNT})
    assert archived_bodies(tmp_path / "archive") == Counter(message.body for message in numbered(COUNT))
    assert said["query"]["rows"] == [{"n": COUNT, "bodies": COUNT}]
    assert (said["replay"]["messages"], said["route"]["read"]) == (COUNT, COUNT)
    expected = Counter(message.body for message in numbered(COUNT))
    for topic in ("ClusterBatchOut", "ClusterStreamOut"):
        assert bodies(server.namesrv, topic) == expected
    assert (said["dedup"]["kept"], said["dedup"]["duplicates"]) == (10, COUNT - 10)
    assert (said["triage"]["dead_letters"], said["redrive"]["sent"]) == (6, 6)
    assert len(bodies(server.namesrv, "ClusterDedupOut")) == 10 + 6
    assert said["analytics"]["messages"] == COUNT
    assert (tmp_path / "report" / "report.html").is_file()
    assert said["rebuild"]["damage"] == [] and (tmp_path / "rebuilt" / "consumequeue").is_dir()
