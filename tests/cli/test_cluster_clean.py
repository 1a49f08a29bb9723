"""`orbitmq cluster clean` deletes what expired on a real broker, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.commands import Commands
from tests.support.server_process import ServerProcess


def test_expired_files_go_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other_hour = f"{(time.localtime().tm_hour + 12) % 24:02d}"
    with ServerProcess(
        tmp_path, mappedFileSizeCommitLog=64 << 10, fileReservedTime=1, deleteWhen=other_hour
    ) as server:
        orbitmq = Commands(capsys, server.namesrv)
        orbitmq.ok("topic", "create", "Old", "--queues", "1")
        orbitmq.ok("send", "Old", "x" * 4000, "--count", "100")  # short enough not to be compressed
        log = server.data / "commitlog"
        (nothing,) = orbitmq.ok("cluster", "clean", "--yes", "--json").json
        assert (nothing["broker"], nothing["log_files"]) == ("broker-a", 0)
        two_hours_ago = time.time() - 2 * 3600
        before = sorted(os.listdir(log))
        for name in before[:3]:
            os.utime(log / name, (two_hours_ago, two_hours_ago))
        refused = orbitmq("cluster", "clean", "--json")
        assert refused.code == 2  # a program has to say yes
        (cleaned,) = orbitmq.ok("cluster", "clean", "--yes", "--json").json
        assert cleaned["log_files"] == 3
        deadline = time.monotonic() + 5
        while sorted(os.listdir(log))[:1] != before[3:4] and time.monotonic() < deadline:
            time.sleep(0.02)
        status = orbitmq.ok("topic", "status", "Old", "--json").json["queues"][0]
        assert status["max_offset"] == 100
        assert 30 < status["min_offset"] < 50
        assert "LOG FILES" in orbitmq.ok("cluster", "clean", "--yes").out
