"""Running handlers: settled by how they end, measured, cancelled when they hang, guarded."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from orbitmq.client.core.advice import HandlingTimes
from orbitmq.client.handling import Handling
from orbitmq.client.message import DONE, Message
from orbitmq.client.tracing import Interceptor, Interceptors
from orbitmq.wire.message import encode_record
from tests.support.tiny_server import run


class Told:
    def __init__(self) -> None:
        self.heard: list[tuple[str, ...]] = []

    def finish(self, msg: Message) -> None:
        self.heard.append(("finish", msg.text))

    def retry(self, msg: Message, after_s: float | None, reason: str) -> Awaitable[None]:
        self.heard.append(("retry", msg.text, str(after_s), reason))
        return DONE

    def bury(self, msg: Message, reason: str) -> Awaitable[None]:
        self.heard.append(("bury", msg.text, reason))
        return DONE

    def release(self, msg: Message) -> None:
        self.heard.append(("release", msg.text))


class Shared:
    """An inbox of a few messages, for any number of tasks."""

    def __init__(self, told: Told, *bodies: str) -> None:
        self._messages = [
            Message(encode_record(topic="T", body=body.encode()), 0, "broker-a", told) for body in bodies
        ][::-1]

    def __aiter__(self) -> Shared:
        return self

    async def __anext__(self) -> Message:
        if not self._messages:
            raise StopAsyncIteration
        return self._messages.pop()


def handling(inbox: Any, handler: Callable[..., Any], **options: Any) -> Handling:
    options = {"group": "g", "concurrency": 1, "times": HandlingTimes(), **options}
    return Handling(inbox, handler, **options)


def test_how_a_handler_ends_decides() -> None:
    async def scenario() -> None:
        told = Told()

        async def handle(msg: Message) -> None:
            match msg.text:
                case "fail":
                    raise ValueError("broken")
                case "later":
                    msg.retry(after=60)
                case "never":
                    msg.dead("no")

        await handling(Shared(told, "ok", "fail", "later", "never"), handle).run()
        assert told.heard == [
            ("finish", "ok"),
            ("retry", "fail", "None", "ValueError: broken"),
            ("retry", "later", "60.0", ""),
            ("bury", "never", "no"),
        ]

    run(scenario)


def test_a_body_that_cannot_be_decoded_is_a_dead_letter_at_once() -> None:
    async def scenario() -> None:
        told, seen = Told(), []

        async def handle(number: int) -> None:
            seen.append(number)

        await handling(Shared(told, "1", "x"), handle).run()
        assert seen == [1]
        assert told.heard[0] == ("finish", "1")
        assert told.heard[1][:2] == ("bury", "x") and "is not a int" in told.heard[1][2]

    run(scenario)


def test_so_many_at_once_and_no_more() -> None:
    async def scenario() -> None:
        told = Told()
        now = most = 0

        async def handle(msg: Message) -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.002)
            now -= 1

        await handling(Shared(told, *map(str, range(30))), handle, concurrency=5).run()
        assert most == 5 and len(told.heard) == 30

    run(scenario)


def test_work_and_waiting_are_told_apart() -> None:
    async def scenario() -> None:
        times = HandlingTimes()

        async def handle(msg: Message) -> None:
            for _ in range(2):
                end = time.perf_counter() + 0.001
                while time.perf_counter() < end:
                    continue
                await asyncio.sleep(0.008)

        await handling(Shared(Told(), *map(str, range(20))), handle, times=times).run()
        advice = times.advice()
        assert advice is not None and advice.samples == 20
        assert 2 <= advice.busy_ms < 8 and advice.waiting_ms > 12
        assert 3 <= advice.concurrency <= 10

    run(scenario)


def test_a_handler_that_hangs_is_cancelled_and_its_message_retried() -> None:
    async def scenario() -> None:
        told = Told()

        async def handle(msg: Message) -> None:
            if msg.text == "hang":
                await asyncio.sleep(60)

        await handling(Shared(told, "hang", "ok"), handle, timeout_s=0.05).run()
        assert told.heard[0][:2] == ("retry", "hang") and "took longer than 0.05 s" in told.heard[0][3]
        assert told.heard[1] == ("finish", "ok")

    run(scenario)


def test_cancelling_from_outside_ends_the_workers_and_releases_their_messages() -> None:
    async def scenario() -> None:
        told = Told()
        entered = asyncio.Event()

        async def handle(msg: Message) -> None:
            entered.set()
            await asyncio.sleep(60)

        task = asyncio.create_task(handling(Shared(told, "a", "b"), handle, timeout_s=30).run())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert told.heard == [("release", "a")]

    run(scenario)


def test_a_plain_function_runs_in_a_thread_and_settles_in_the_loop() -> None:
    async def scenario() -> None:
        here = threading.get_ident()
        threads: set[int] = set()

        class Watching(Told):
            def retry(self, msg: Message, after_s: float | None, reason: str) -> Awaitable[None]:
                assert threading.get_ident() == here
                return super().retry(msg, after_s, reason)

        told = Watching()

        def handle(msg: Message) -> None:
            threads.add(threading.get_ident())
            if msg.text == "later":
                msg.retry(after=5)

        await handling(Shared(told, "ok", "later"), handle).run()
        assert here not in threads
        assert told.heard == [("finish", "ok"), ("retry", "later", "5.0", "")]
        await asyncio.get_running_loop().shutdown_default_executor()

    run(scenario)


class Memory:
    """A guard that remembers in memory, and notes when it commits."""

    def __init__(self, told: Told) -> None:
        self.done: set[str] = set()
        self.log = told.heard

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    @asynccontextmanager
    async def guard(self, msg: Any, group: str = "") -> AsyncIterator[bool]:
        new = msg.text not in self.done
        yield new
        if new and not msg.rejected:
            self.done.add(msg.text)
            self.log.append(("commit", msg.text))
        elif new:
            self.log.append(("roll back", msg.text))


def test_a_guarded_message_is_settled_after_its_effect_is_committed() -> None:
    async def scenario() -> None:
        told = Told()
        calls: list[str] = []

        async def handle(msg: Message) -> None:
            calls.append(msg.text)
            if msg.text == "early":
                msg.ack()
            if msg.text == "later":
                msg.retry(after=5)
            if msg.text == "fail":
                raise ValueError("broken")

        inbox = Shared(told, "a", "a", "early", "later", "fail")
        await handling(inbox, handle, guard=Memory(told)).run()
        assert calls == ["a", "early", "later", "fail"]
        assert told.heard == [
            ("commit", "a"),
            ("finish", "a"),
            ("finish", "a"),
            ("commit", "early"),
            ("finish", "early"),
            ("roll back", "later"),
            ("retry", "later", "5.0", ""),
            ("retry", "fail", "None", "ValueError: broken"),
        ]

    run(scenario)


def test_interceptors_are_around_the_handler() -> None:
    async def scenario() -> None:
        log: list[str] = []

        class Noting(Interceptor):
            @contextmanager
            def handling(self, msg: Any, group: str) -> Any:
                log.append(f"before {msg.text} of {group}")
                try:
                    yield
                except ValueError as error:
                    log.append(f"saw {error}")
                    raise
                log.append("after")

        async def handle(msg: Message) -> None:
            log.append("handled")
            if msg.text == "bad":
                raise ValueError("broken")

        told = Told()
        await handling(Shared(told, "ok", "bad"), handle, interceptors=Interceptors([Noting()])).run()
        assert log == ["before ok of g", "handled", "after", "before bad of g", "handled", "saw broken"]
        assert [entry[0] for entry in told.heard] == ["finish", "retry"]

    run(scenario)
