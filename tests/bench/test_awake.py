"""The request that cores stay awake is made while figures are taken, and a refusal does no harm."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from bench.awake import awake_cores


def test_no_latency_is_asked_for_as_long_as_it_is_entered(tmp_path: Path) -> None:
    device = tmp_path / "device"
    os.mkfifo(device)
    heard: list[bytes] = []
    begun, ended = threading.Event(), threading.Event()

    def listen() -> None:
        with device.open("rb", buffering=0) as pipe:
            heard.append(pipe.read(4))
            begun.set()
            heard.append(pipe.read(1))  # returns when the other side has closed
            ended.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    with awake_cores(device) as agreed:
        assert agreed
        assert begun.wait(10)
        assert not ended.wait(0.1), "the request must stay open"
    assert ended.wait(10)
    listener.join(10)
    assert heard == [bytes(4), b""]


def test_without_the_device_or_the_right_figures_are_taken_all_the_same(tmp_path: Path) -> None:
    with awake_cores(tmp_path / "none") as agreed:
        assert not agreed
    with awake_cores(Path("/dev/full")) as agreed:
        assert not agreed, "a write that fails is no agreement"
