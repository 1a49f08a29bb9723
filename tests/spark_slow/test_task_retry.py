"""Tasks that die half way and are tried again by Spark: every message is read once, and written once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.spark.reading_back import bodies, open_halves
from tests.spark.topics import Topics, numbered
from tests.spark_slow.retry_job import BODY_BYTES, DEATHS, KILLS, PER_BATCH, RAISES, ROWS
from tests.spark_slow.standalone import ROOT, environment
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.slow

LIMIT_S = 600
COUNT = 2 * PER_BATCH
EXPECTED_ROWS = Counter(str(n).encode().ljust(BODY_BYTES, b".") for n in range(ROWS))


@dataclass(frozen=True)
class Ran:
    """One job with all kinds of death, and where it wrote to."""

    namesrv: str
    directory: Path
    result: dict[str, Any]

    def topic(self, name: str, death: str) -> Counter[bytes]:
        return bodies(self.namesrv, f"{name}-{death}")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    directory = tmp_path_factory.mktemp("retry")
    with ServerProcess(directory / "server", flushDiskType="ASYNC_FLUSH") as server:
        topics = Topics(server.broker_addr)
        topics.create("RetryIn", 2)
        for queue_id in range(2):
            topics.fill("RetryIn", queue_id, numbered(COUNT // 2, queue_id * COUNT // 2, size=BODY_BYTES))
        for death in DEATHS:
            for name in ("RetryPlain", "RetryBatch", "RetryNamed", "RetryStream"):
                topics.create(f"{name}-{death}", 2)
        topics.close()
        command = [sys.executable, "-m", "tests.spark_slow.retry_job", server.namesrv, str(directory)]
        done = subprocess.run(
            command,
            env=environment(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-6000:]
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        yield Ran(server.namesrv, directory, json.loads(line.removeprefix("RESULT ")))


@pytest.mark.parametrize("death", DEATHS)
def test_every_task_really_died_once(ran: Ran, death: str) -> None:
    died = list((ran.directory / death).glob(f"{death}-*"))
    if death == KILLS:
        # A task whose workers were killed by another one has had its first attempt.
        assert len(died) >= 2 + 3 + 2
        assert all(path.read_text("utf-8") for path in died), "nobody was killed"
    else:
        # Four tasks of either read, two of each of three writes, two of each of two micro-batches.
        assert len(died) == 4 + 4 + 3 * 2 + 2 * 2


@pytest.mark.parametrize("how", ["read", "read_rows"])
@pytest.mark.parametrize("death", DEATHS)
def test_a_read_is_complete_and_without_duplicates(ran: Ran, death: str, how: str) -> None:
    assert ran.result[death][how] == list(range(COUNT))


@pytest.mark.parametrize("name", ["RetryBatch", "RetryNamed"])
@pytest.mark.parametrize("death", DEATHS)
def test_a_batch_is_written_once(ran: Ran, death: str, name: str) -> None:
    assert ran.topic(name, death) == EXPECTED_ROWS


@pytest.mark.parametrize("death", DEATHS)
def test_a_stream_is_written_once(ran: Ran, death: str) -> None:
    assert ran.topic("RetryStream", death) == Counter(
        message.body for message in numbered(COUNT, size=BODY_BYTES)
    )


@pytest.mark.parametrize("death", DEATHS)
def test_nothing_of_a_named_job_is_left_open(ran: Ran, death: str) -> None:
    assert open_halves(ran.namesrv, f"SPARK_SINK_retry_{death}") == 0


def test_rows_were_sent_before_their_task_died(ran: Ran) -> None:
    """Shown by `at-least-once`, where they appear again: without this the other tests would show nothing."""
    found = ran.topic("RetryPlain", RAISES)
    assert found.keys() == EXPECTED_ROWS.keys()
    assert found.total() > EXPECTED_ROWS.total()
