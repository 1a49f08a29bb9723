from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orbitmq.client.client import connect
from orbitmq.client.errors import BadRequest, Closed
from orbitmq.client.identity import make_client_id
from orbitmq.client.times import millis, moment_ms, seconds
from orbitmq.wire.codes import RequestCode
from tests.support.fake_servers import fake_cluster, reply
from tests.support.tiny_server import run


def test_the_address_comes_from_the_call_then_the_environment_then_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:9876;10.0.0.2")
    assert connect("10.0.0.9:1").cluster.namesrv_addrs == ("10.0.0.9:1",)
    assert connect().cluster.namesrv_addrs == ("10.0.0.1:9876", "10.0.0.2:9876")
    monkeypatch.delenv("NAMESRV_ADDR")
    assert connect().cluster.namesrv_addrs == ("127.0.0.1:9876",)


@pytest.mark.parametrize(
    ("arguments", "text", "hint"),
    [
        ({"namesrv": "host:port"}, "'host:port' is not a name server address", "HOST:PORT"),
        ({"namesrv": 9876}, "the name server address is int, not text", "host:port"),
        ({"timeout": 0}, "timeout is 0 s", "positive"),
        ({"timeout": "3"}, "timeout is str, not a duration", "timeout=2.5"),
        ({"timeout": timedelta(seconds=-1)}, "timeout is -1 s", "positive"),
        ({"instance": "two words"}, "'two words' is not an instance name", "no blanks"),
    ],
)
def test_bad_arguments_are_refused_where_they_are_written(
    arguments: dict[str, Any], text: str, hint: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        connect(**arguments)
    assert str(caught.value) == text
    assert hint in caught.value.hint


def test_client_ids() -> None:
    assert make_client_id("10.0.0.1", 7, 255) == "10.0.0.1@7#ff"
    assert make_client_id("10.0.0.1", 7, 255, "till-3") == "10.0.0.1@till-3"
    assert connect().client_id != connect().client_id
    assert connect(client_id="me@here").client_id == "me@here"


def test_durations_and_moments() -> None:
    assert seconds(timedelta(minutes=2), "x") == 120
    assert millis(0.25, "x") == 250
    assert seconds(0, "x", zero=True) == 0
    assert moment_ms(datetime(2026, 1, 1, tzinfo=UTC), "deliver_at") == 1767225600000
    for wrong in (float("nan"), float("inf"), True, None):
        with pytest.raises(BadRequest):
            seconds(wrong, "x")  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="deliver_at has no time zone"):
        moment_ms(datetime(2026, 1, 1), "deliver_at")
    with pytest.raises(BadRequest, match="deliver_at is int, not a datetime"):
        moment_ms(5, "deliver_at")  # type: ignore[arg-type]


def test_after_close_no_task_and_no_connection_is_left() -> None:
    async def main() -> None:
        async with fake_cluster({RequestCode.HEART_BEAT: reply()}) as fake:
            before = asyncio.all_tasks()
            async with connect(fake.namesrv.addr) as mq:
                await mq.cluster.route("TopicA")
                mq.presence.add_producer("writers")
                await mq.presence.beat_now()
                channel = mq.cluster.living_channel(fake.addrs["broker-a"])
                assert channel is not None
                assert len(asyncio.all_tasks()) > len(before)
            assert channel.closed
            assert asyncio.all_tasks() == before
            await mq.close()

    run(main)


def test_a_closed_client_says_so() -> None:
    async def main() -> None:
        mq = await connect("127.0.0.1:1")
        await mq.close()
        for use in (lambda: mq.producer("g"), lambda: mq.start(), lambda: mq.admin):
            with pytest.raises(Closed, match="the client is closed") as caught:
                use()
            assert "orbitmq.connect" in caught.value.hint
        assert "closed" in repr(mq)

    run(main)


def test_parts_are_closed_consumers_first_and_one_failure_does_not_spare_the_rest() -> None:
    order: list[str] = []

    class Part:
        def __init__(self, name: str, error: Exception | None = None) -> None:
            self.name = name
            self.error = error

        async def aclose(self) -> None:
            order.append(self.name)
            if self.error:
                raise self.error

    async def main() -> None:
        mq = await connect("127.0.0.1:1")
        mq.adopt(Part("producer"))
        gone = Part("released")
        mq.adopt(gone)
        mq.release(gone)
        mq.adopt(Part("consumer", ValueError("no commit")), closed_first=True)
        with pytest.raises(ValueError, match="no commit"):
            await mq.close()
        assert order == ["consumer", "producer"]
        assert mq.closed and not mq.scope.tasks

    run(main)


def test_a_client_belongs_to_one_event_loop() -> None:
    mq = connect("127.0.0.1:1")

    async def use() -> None:
        mq.start()

    asyncio.run(use())
    with pytest.raises(BadRequest, match="another event loop"):
        asyncio.run(use())
