"""The examples that are programs: run as a reader would run them, and read what they print."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60


def lines_of(example: str, namesrv: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / example)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "NAMESRV_ADDR": namesrv},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_orders_pipeline(namesrv: str) -> None:
    *parcels, last = lines_of("orders_pipeline.py", namesrv)
    assert sorted(parcels) == [
        "order-1: 98.00 paid, parcel on its way",
        "order-2: 399.00 paid, parcel on its way",
        "order-3: 516.00 paid, parcel on its way",
    ]
    assert last == "3 orders shipped"


def test_payments_sent_twice_are_made_once(namesrv: str) -> None:
    lines = lines_of("payments.py", namesrv)
    assert sorted(lines[:-2]) == [
        "ada pays 11.00 for book",
        "ada pays 49.00 for lamp",
        "bob pays 29.00 for chair",
    ]
    assert lines[-2:] == ["ada has 40.00", "bob has 71.00"]


def test_ordered_workflow(namesrv: str) -> None:
    assert lines_of("ordered_workflow.py", namesrv) == [
        f"order-{number}: created → paid → packed → shipped" for number in range(1, 6)
    ]


def test_request_reply(namesrv: str) -> None:
    assert lines_of("request_reply.py", namesrv) == ["lamp: 49.00", "chair: 129.00", "piano: unknown"]


def test_transactional_outbox(namesrv: str) -> None:
    assert lines_of("transactional_outbox.py", namesrv) == [
        "order-1 was saved and announced",
        "order-2 was neither saved nor announced",
        "order-3 was saved by a program that died before it could announce it",
        "order-3 was announced after the broker had asked",
    ]
