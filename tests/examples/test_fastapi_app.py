"""The web shop behind a real HTTP server, with consumers that start and stop with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server_process import free_port

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 30
# Whatever proxy this machine uses, the shop is not behind it.
HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(address: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"content-type": "application/json"})
    try:
        with HTTP.open(request, timeout=LIMIT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.fixture(scope="module")
def shop(namesrv: str) -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "examples.fastapi_app:web", "--port", str(port)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "NAMESRV_ADDR": namesrv},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    seen: list[str] = []
    while not any("running on" in line for line in seen):
        line = process.stderr.readline()
        assert line, "".join(seen)
        seen.append(line)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    _, rest = process.communicate(timeout=LIMIT_S)
    assert "Application shutdown complete" in rest, rest


def test_an_order_is_accepted_at_once_and_billed_behind_it(shop: str) -> None:
    status, accepted = ask(f"{shop}/orders", {"item": "lamp", "pieces": 2})
    assert status == 202 and accepted["status"] == "accepted" and accepted["cents"] is None

    deadline = time.monotonic() + LIMIT_S
    while (order := ask(f"{shop}/orders/{accepted['id']}")[1])["status"] != "billed":
        assert time.monotonic() < deadline, order
        time.sleep(0.05)
    assert order["cents"] == 9_800


def test_wrong_requests_are_answered_as_such(shop: str) -> None:
    assert ask(f"{shop}/orders", {"pieces": 2})[0] == 422
    assert ask(f"{shop}/orders/unknown")[0] == 404
