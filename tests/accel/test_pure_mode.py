"""The switch ORBITMQ_PURE: the same broker without the accelerator."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orbitmq.wire.batch import encode_batch
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import request
from tests.support.raw_client import RawClient, send_ext
from tests.support.server_process import SOURCE, ServerProcess

SMALL = {"mappedFileSizeCommitLog": 16 * 1024 * 1024}


def test_the_switch_leaves_everything_to_python() -> None:
    names = ("stage_frames", "put_index", "gather", "pick", "follow", "whole_records")
    code = f"from orbitmq import accel; print({', '.join(f'accel.{name}' for name in names)})"
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "ORBITMQ_PURE": "1"}
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["None"] * len(names)


@pytest.mark.parametrize("pure", ["1", ""])
def test_a_server_sends_and_is_read_either_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pure: str
) -> None:
    monkeypatch.setenv("ORBITMQ_PURE", pure)
    with ServerProcess(tmp_path, **SMALL) as server:
        asyncio.run(send_and_read(server.broker_addr))
        assert server.stop() == 0
    assert "Traceback" not in server.printed


async def send_and_read(addr: str) -> None:
    bodies = [b"message %d" % number for number in range(60)]
    text = "UNIQ_KEY\x01C0000202{:024X}\x02WAIT\x01true\x02TAGS\x01A\x02KEYS\x01key{}"
    async with RawClient(addr) as client:
        await client.create_topic("Pure", 1)
        sends = [
            request(RequestCode.SEND_MESSAGE_V2, send_ext("Pure", 0, text.format(n, n)), body)
            for n, body in enumerate(bodies[:40])
        ]
        items = [(0, body, text.format(n, n).encode()) for n, body in enumerate(bodies[40:], 40)]
        ext = send_ext("Pure", 0, "WAIT\x01true", m="true")
        sends.append(request(RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch(items)))
        for number in client.write(sends):
            assert (await client.answer(number)).code == 0
        read = await client.read_queue("Pure", 0)
        assert [message.body for message in read] == bodies
        assert [message.queue_offset for message in read] == list(range(60))
        for number in (3, 50):
            assert [message.body for message in await client.by_key("Pure", f"key{number}")] == [
                bodies[number]
            ]
