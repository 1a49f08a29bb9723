"""Large pages that go right into a socket: whatever that takes at once, and what is left, make the whole answer."""

from __future__ import annotations

import os
import socket
from random import Random

import pytest

from orbitmq import accel
from orbitmq.broker import pull_answer
from orbitmq.store.consume_queue import UNIT

if accel.found_page is None:
    pytest.skip("the accelerator is not built", allow_module_level=True)

LEAST = 64 * 1024
BASE = 1 << 30
NUMBERS = (9, 1, 5, 0, 77)


def drained(reader: socket.socket) -> bytes:
    found: list[bytes] = []
    try:
        while more := reader.recv(1 << 20, socket.MSG_DONTWAIT):
            found.append(more)
    except BlockingIOError:
        pass
    return b"".join(found)


@pytest.mark.parametrize("buffer_bytes", [4096, 100_000, 4 << 20])
def test_what_is_written_and_what_is_left_are_the_answer(buffer_bytes: int) -> None:
    assert accel.found_page is not None
    random = Random(buffer_bytes)
    segment = random.randbytes(1 << 20)
    ways = set()
    for _ in range(60):
        # A stretch of neighbours, with gaps at times: of records large enough, or too scattered to be written apart.
        mean, gaps = random.choice((300, 3000, 30_000)), random.choice((0.0, 0.05, 0.5))
        units, at = b"", random.randrange(1000)
        while at < random.choice((50_000, 400_000, 900_000)):
            size = random.randrange(1, 2 * mean)
            units += UNIT.pack(BASE + at, size, 5)
            at += size + (random.randrange(500) if random.random() < gaps else 0)
        place = units, segment, BASE, BASE + (1 << 20), 9000, 700_000, None
        whole, count, size = accel.found_page(*place, pull_answer.FOUND, *NUMBERS)
        near, far = socket.socketpair()
        with near, far:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
            near.setblocking(False)
            rest, *told = accel.found_page(*place, pull_answer.FOUND, *NUMBERS, near.fileno())
            assert told == [count, size]
            assert drained(far) + rest == whole
            ways.add("copied" if rest == whole else "in part" if rest else "written")
    assert "copied" in ways  # small ones and scattered ones
    assert ways & {"in part", "written"}


def test_a_socket_that_takes_nothing_leaves_everything() -> None:
    assert accel.found_page is not None
    segment = os.urandom(4 * LEAST)
    place = UNIT.pack(0, 3 * LEAST, 0), segment, 0, len(segment), 1, 1, None
    whole, *_ = accel.found_page(*place, pull_answer.FOUND, *NUMBERS)
    near, far = socket.socketpair()
    with near:
        far.close()
        assert accel.found_page(*place, pull_answer.FOUND, *NUMBERS, near.fileno())[0] == whole, (
            "the peer is gone"
        )
    assert accel.found_page(*place, pull_answer.FOUND, *NUMBERS, near.fileno())[0] == whole, (
        "it is no socket any more"
    )
    assert accel.found_page(*place, pull_answer.FOUND, *NUMBERS, -1)[0] == whole
