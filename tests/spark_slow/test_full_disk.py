"""No room at the archive: a clear error, nothing half-written visible, and the next run goes on."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.spark.archived import archived_bodies
from tests.spark.topics import Out, Topics
from tests.spark_slow.standalone import ROOT, environment
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.slow

FILE_LIMIT_BYTES = 1 << 20
LIMIT_S = 900


def no_large_files() -> None:
    """Stands in for a full disk: writing past this size fails in the same place, without filling one."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT_BYTES, FILE_LIMIT_BYTES))


def test_an_archive_that_cannot_be_written(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    messages = [Out(os.urandom(20_000)) for _ in range(300)]
    with ServerProcess(tmp_path / "server", flushDiskType="ASYNC_FLUSH") as server:
        topics = Topics(server.broker_addr)
        topics.create("Large", 1)
        topics.fill("Large", 0, messages)
        topics.close()
        command = [sys.executable, "-m", "orbitmq.spark.pipelines.archive", str(archive), "-t", "Large"]
        command += ["-n", server.namesrv, "--master", "local[1]", "--json"]
        failed = run(command, limited=True)
        assert failed.returncode == 1
        line = json.loads([line for line in failed.stderr.splitlines() if line.startswith('{"error"')][-1])
        assert str(archive) in line["error"] and "too large" in line["error"], failed.stderr
        done = run(command, limited=False)
        assert done.returncode == 0, done.stderr[-3000:]
        assert json.loads(done.stdout.splitlines()[-1])["in_archive"] == {"Large": 300}
    assert archived_bodies(archive) == Counter(message.body for message in messages)


def run(command: list[str], *, limited: bool) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        preexec_fn=no_large_files if limited else None,
    )
