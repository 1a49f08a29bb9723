"""The loop behind blocking calls: results, errors, misuse, and an end that always comes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from orbitmq.loop_thread import LoopClosed, LoopThread


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread("tested-loop")
    yield thread
    thread.close()


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return number * 2


async def fail() -> None:
    raise KeyError("its own error")


def test_results_and_errors_come_back_to_the_caller(loop: LoopThread) -> None:
    assert loop.run(double(21)) == 42
    assert loop.call(lambda: threading.current_thread().name) == "tested-loop"
    with pytest.raises(KeyError, match="its own error"):
        loop.run(fail())


def test_a_caller_with_a_loop_of_its_own_is_served(loop: LoopThread) -> None:
    async def notebook_cell() -> int:
        return loop.run(double(4))

    assert asyncio.run(notebook_cell()) == 8


def test_a_call_from_the_loop_itself_is_refused_instead_of_waiting_for_ever(loop: LoopThread) -> None:
    with pytest.raises(RuntimeError, match="wait for itself"):
        loop.call(lambda: loop.run(double(1)))


def test_closing_ends_what_waits_and_refuses_what_comes() -> None:
    loop = LoopThread("tested-loop")
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            loop.run(asyncio.sleep(60))
        except LoopClosed as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not loop.call(lambda: len(asyncio.all_tasks()) > 1):
        time.sleep(0.005)
    loop.close()
    loop.close()
    waiting.join(5)
    assert len(ended) == 1
    with pytest.raises(LoopClosed):
        loop.run(double(1))
    loop.post(lambda: ended.clear())
    assert len(ended) == 1


def test_work_that_hangs_in_a_thread_does_not_keep_the_loop_open(caplog: pytest.LogCaptureFixture) -> None:
    loop = LoopThread("tested-loop", close_s=0.1)
    release, started = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        release.wait(10)

    async def begin() -> None:
        asyncio.get_running_loop().run_in_executor(None, hang)

    loop.run(begin())
    assert started.wait(5)
    begun = time.monotonic()
    loop.close()
    assert time.monotonic() - begun < 5
    assert "still runs" in caplog.text
    release.set()
