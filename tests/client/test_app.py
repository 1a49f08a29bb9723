"""An App: handlers by decorator, hooks, an orderly end."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, replace

import pytest

from orbitmq.client.app import App
from orbitmq.client.client import connect
from orbitmq.client.errors import BadRequest, Closed, NotFound
from orbitmq.client.message import Message
from orbitmq.client.sender import Sender
from orbitmq.client.subscriptions import Sql
from orbitmq.testing import Server
from orbitmq.wire.properties import decode_properties, encode_properties
from tests.support.consuming import run, send, until


@dataclass
class Order:
    number: int


def test_handlers_get_decoded_messages_of_their_topics(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        app = App(orbitmq_server.namesrv)
        seen: list[object] = []

        @app.on("orders", group="billing", start="first", concurrency=4)
        async def bill(order: Order, msg: Message) -> None:
            seen.append((order, msg.topic))

        @app.on("notes", group="billing", tags="loud", start="first", concurrency=4)
        def note(text: str) -> None:
            seen.append(text)

        @app.on({"amounts": Sql("n > 1")}, group="counting", start="first")
        async def count(number: int) -> None:
            seen.append(number)

        assert app.handlers == {"billing": ["notes", "orders"], "counting": ["amounts"]}
        async with connect(orbitmq_server.namesrv) as mq:
            await send(mq, "orders", ['{"number": 7}'])
            await send(mq, "notes", ["hi"], tag="loud")
            await send(mq, "notes", ["psst"], tag="soft")
            await send(mq, "amounts", [1], properties={"n": "1"})
            await send(mq, "amounts", [2], properties={"n": "2"})
        async with app:
            await until(lambda: len(seen) == 3)
            assert app.consumer("billing").concurrency == 4
            await asyncio.get_running_loop().shutdown_default_executor()
        assert (Order(7), "orders") in seen and "hi" in seen and 2 in seen

    run(scenario)


def test_hooks_and_a_producer_of_its_own(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        app = App(orbitmq_server.namesrv)
        log: list[str] = []
        done = asyncio.Event()

        @app.on_startup
        async def begin(running: App) -> None:
            assert running is app
            log.append("begin")
            await running.producer("shop").send("orders", b"one")

        @app.on_shutdown
        def end() -> None:
            log.append("end")

        @app.on("orders", group="billing", start="first")
        async def bill(msg: Message) -> None:
            log.append(msg.text)
            await asyncio.sleep(0.05)
            log.append("billed")
            done.set()

        async with app:
            assert app.producer("shop") is app.producer("shop")
            await until(lambda: "one" in log)
        assert log == ["begin", "one", "billed", "end"], "the handler is finished before the end"
        with pytest.raises(Closed, match="the app does not run"):
            _ = app.client

    run(scenario)


def test_serve_ends_by_a_signal_in_an_orderly_way(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        app = App(orbitmq_server.namesrv)
        log: list[str] = []

        @app.on("orders", group="billing", start="first")
        async def bill(msg: Message) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
            log.append(msg.text)

        async with connect(orbitmq_server.namesrv) as mq:
            await send(mq, "orders", ["one"], queue_id=0)
            await app.serve(ready=lambda: log.append("ready"))
        assert log == ["ready", "one"]
        assert orbitmq_server.inspect(lambda broker: broker.offsets.query("billing", "orders", 0)) == 1
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    run(scenario)


def test_stop_soon_from_a_handler_and_a_second_run(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        app = App(orbitmq_server.namesrv)
        seen: list[str] = []

        @app.on("orders", group="billing", start="first")
        async def bill(msg: Message) -> None:
            seen.append(msg.text)
            app.stop_soon()

        async with connect(orbitmq_server.namesrv) as mq:
            for number in range(2):
                await send(mq, "orders", [number])
                await app.serve()
        assert seen == ["0", "1"]

    run(scenario)


@pytest.mark.orbitmq(autoCreateTopicEnable=False)
def test_a_start_that_fails_leaves_nothing_behind(orbitmq_server: Server) -> None:
    orbitmq_server.create_topic("orders")

    async def scenario() -> None:
        app = App(orbitmq_server.namesrv)
        app.on("orders", group="billing")(_ignore)
        app.on("nowhere", group="lost")(_ignore)
        with pytest.raises(NotFound, match="topic 'nowhere' does not exist"):
            await app.start()
        assert orbitmq_server.inspect(lambda broker: broker.clients.consumer_ids("billing")) == []

    run(scenario)


async def _ignore(msg: Message) -> None:
    return


def test_mistakes_are_told_where_they_are_written() -> None:
    app = App()
    app.on("orders", group="billing", ordered=True)(_ignore)
    with pytest.raises(BadRequest, match="different options"):
        app.on("other", group="billing")(_ignore)
    with pytest.raises(BadRequest, match="has a handler in group 'billing' already"):
        app.on("orders", group="billing", ordered=True)(_ignore)
    with pytest.raises(BadRequest, match="no option 'parallel'") as caught:
        app.on("orders", group="g", parallel=3)  # type: ignore[call-arg]
    assert "concurrency" in caught.value.hint
    with pytest.raises(BadRequest, match="both tags= and sql="):
        app.on("orders", group="g", tags="a", sql="b = 1")
    with pytest.raises(BadRequest, match="arguments of a message"):
        app.on("orders", group="g")(lambda: None)
    with pytest.raises(BadRequest, match="no handler of group 'x' runs"):
        app.consumer("x")


def test_checks_of_transactions_reach_their_handler(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        app = App(orbitmq_server.namesrv)
        asked: list[str] = []

        @app.on_check("shop")
        async def check(msg: Message) -> bool:
            asked.append(msg.text)
            return True

        async with connect(orbitmq_server.namesrv) as gone:
            sender = Sender(gone.cluster, "shop")
            half = sender.prepare("orders", b"half")
            properties = {**decode_properties(half.properties), "TRAN_MSG": "true", "PGROUP": "shop"}
            half = replace(half, sys_flag=4, properties=encode_properties(properties).decode())
            await sender.send(half)
        async with app:
            await until(lambda: "shop" in app.client.presence.producer_groups)
            await app.client.presence.beat_now()
            while not asked:
                await asyncio.to_thread(orbitmq_server.advance, minutes=2)
            await until(lambda: orbitmq_server.sent("orders"))
        # Minutes pass at once here, so it may be asked again before its answer is there; it is delivered once.
        assert set(asked) == {"half"}
        assert [message.body for message in orbitmq_server.sent("orders")] == [b"half"]

    run(scenario)
