from __future__ import annotations

import asyncio
import logging

import pytest

from orbitmq.client.errors import Closed
from orbitmq.client.scope import Scope
from tests.support.tiny_server import run, until


def test_closing_cancels_and_awaits_everything() -> None:
    ended: list[str] = []

    async def slow_to_end(name: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append(name)

    async def main() -> None:
        scope = Scope("test")
        for name in ("a", "b"):
            scope.spawn(slow_to_end(name), name=name)
        await asyncio.sleep(0)
        await scope.aclose()
        assert sorted(ended) == ["a", "b"]
        assert not scope.tasks

    run(main)


def test_a_loop_that_fails_is_logged_and_started_again(caplog: pytest.LogCaptureFixture) -> None:
    starts: list[int] = []

    async def loop() -> None:
        starts.append(len(starts))
        if len(starts) < 3:
            raise ValueError(f"broken {len(starts)}")
        await asyncio.sleep(60)

    async def main() -> None:
        scope = Scope("test", first_pause_s=0.001)
        scope.keep(loop, name="renewal")
        await until(lambda: len(starts) == 3)
        await scope.aclose()

    with caplog.at_level(logging.ERROR, "orbitmq.client"):
        run(main)
    assert "test/renewal failed and is started again in 0.001 s" in caplog.text
    assert "broken 2" in caplog.text


def test_a_failed_loop_pauses_longer_each_time(caplog: pytest.LogCaptureFixture) -> None:
    async def loop() -> None:
        raise ValueError("always")

    async def main() -> None:
        scope = Scope("test", first_pause_s=0.001, longest_pause_s=0.004)
        scope.keep(loop, name="loop")
        await until(lambda: len(caplog.records) >= 4)
        await scope.aclose()

    with caplog.at_level(logging.ERROR, "orbitmq.client"):
        run(main)
    pauses = [record.getMessage().rpartition(" in ")[2] for record in caplog.records[:4]]
    assert pauses == ["0.001 s", "0.002 s", "0.004 s", "0.004 s"]


def test_a_failed_task_that_nobody_awaits_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("unnoticed otherwise")

    async def main() -> None:
        scope = Scope("test")
        scope.spawn(fail(), name="work")
        with pytest.raises(RuntimeError):
            await scope.spawn(fail(), name="asked-for", awaited=True)
        await until(lambda: not scope.tasks)
        await scope.aclose()

    with caplog.at_level(logging.WARNING, "orbitmq.client"):
        run(main)
    assert "test/work failed: unnoticed otherwise" in caplog.text
    assert "asked-for" not in caplog.text


def test_nothing_starts_in_a_closed_scope() -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    async def main() -> None:
        scope = Scope("test")
        await scope.aclose()
        with pytest.raises(Closed, match="work is not started: test is closed"):
            scope.spawn(work(), name="work")

    run(main)


def test_a_task_of_the_scope_may_close_it() -> None:
    async def main() -> None:
        scope = Scope("test")
        other = scope.spawn(asyncio.sleep(60), name="other")
        closing = scope.spawn(scope.aclose(), name="closing")
        await closing
        assert other.cancelled()

    run(main)


def test_a_task_that_ignores_its_end_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def stubborn() -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        scope = Scope("test", grace_s=0.02)
        scope.spawn(stubborn(), name="stubborn")
        await asyncio.sleep(0)
        await scope.aclose()
        assert not scope.tasks

    with caplog.at_level(logging.ERROR, "orbitmq.client"):
        run(main)
    assert "test/stubborn does not end 0.02 s after being cancelled" in caplog.text
