"""A consumer against a real broker: at least once, retries, dead letters, positions, filters, faults."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orbitmq.client.admin.reset import apply_reset, plan_reset
from orbitmq.client.client import connect
from orbitmq.client.core.process_queue import Limits
from orbitmq.client.dedup import Dedup
from orbitmq.client.errors import BadRequest, NotFound, OrbitMQError
from orbitmq.client.message import Message
from orbitmq.client.subscriptions import Sql, SubscriptionMismatch
from orbitmq.client.tracing import Interceptor
from orbitmq.testing import Server
from orbitmq.wire import bodies
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import request
from tests.support.consuming import collect, nothing_more, run, send, until


def test_every_message_is_delivered_and_progress_is_kept_over_a_restart(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as mq:
            await send(mq, "orders", range(100), tag="paid")
            async with mq.consumer("billing", "orders") as inbox:
                assert sorted(map(int, await collect(inbox, 100))) == list(range(100))
            await send(mq, "orders", range(100, 110))
            async with mq.consumer("billing", "orders") as inbox:
                assert sorted(map(int, await collect(inbox, 10))) == list(range(100, 110))
                await nothing_more(inbox)

    run(scenario)


def test_what_was_not_acknowledged_comes_again(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as mq:
            await send(mq, "orders", range(5), queue_id=0)
            async with mq.consumer("billing", "orders") as inbox:
                first = await anext(inbox)
                second = await anext(inbox)
                second.ack()
                assert (first.text, second.text) == ("0", "1")
                assert (await anext(inbox)).text == "2"
                await inbox.commit()
            async with mq.consumer("billing", "orders") as inbox:
                assert await collect(inbox, 5) == ["0", "1", "2", "3", "4"]

    run(scenario)


def test_a_failed_message_comes_again_with_back_off_and_in_the_end_is_a_dead_letter(
    orbitmq_server: Server,
) -> None:
    async def scenario() -> None:
        tries: list[tuple[str, int, str]] = []
        async with (
            connect(orbitmq_server.namesrv) as mq,
            mq.consumer("billing", "orders", max_retries=2, start="first") as inbox,
        ):
            await send(mq, "orders", ["bad"], keys=["order-42"])
            for _ in range(3):
                async with await anext(inbox) as msg:
                    tries.append((msg.topic, msg.reconsume_times, msg.keys[0]))
                    raise ValueError("no stock")
                await until(lambda: inbox.tally.returned == len(tries))
                await asyncio.to_thread(orbitmq_server.advance, minutes=3)
            await until(lambda: len(orbitmq_server.dead("billing")) == 1)
            assert tries == [("orders", number, "order-42") for number in range(3)]
            await nothing_more(inbox)
        (dead,) = orbitmq_server.dead("billing")
        assert dead.body == b"bad" and dead.properties["DLQ_REASON"] == "ValueError: no stock"

    run(scenario)


def test_a_message_may_ask_for_its_own_delay_or_for_the_dead_letters(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as mq:
            await send(mq, "orders", ["later", "never"], queue_id=0)
            async with mq.consumer("billing", "orders") as inbox:
                async with await anext(inbox) as msg:
                    await msg.retry(after=timedelta(minutes=5))
                async with await anext(inbox) as msg:
                    await msg.dead("no such order")
                (waiting,) = orbitmq_server.waiting("%RETRY%billing")
                assert 299 <= (waiting.deliver_at - orbitmq_server.now()).total_seconds() <= 301
                (dead,) = orbitmq_server.dead("billing")
                assert dead.properties["DLQ_REASON"] == "no such order"
                await asyncio.to_thread(orbitmq_server.advance, minutes=6)
                assert await collect(inbox, 1) == ["later"]
                assert inbox.tally.returned == 1 and inbox.tally.buried == 1

    run(scenario)


def test_start_positions(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as mq:
            await send(mq, "orders", ["old"], queue_id=0)
            await asyncio.to_thread(orbitmq_server.advance, hours=1)
            middle = orbitmq_server.now()
            await send(mq, "orders", ["new"], queue_id=0)
            expected = {
                "first": ["old", "new"],
                "earliest": ["old", "new"],
                "auto": ["old", "new"],
                middle: ["new"],
            }
            for number, (start, bodies) in enumerate(expected.items()):
                async with mq.consumer(f"g{number}", "orders", start=start) as inbox:
                    assert await collect(inbox, len(bodies)) == bodies, start
            async with mq.consumer("end", "orders", start="last") as inbox:
                await until(lambda: len(inbox.positions()) == 5)
                await send(mq, "orders", ["after"], queue_id=0)
                assert await collect(inbox, 1) == ["after"]
            with pytest.raises(BadRequest, match="start='begin' is no position"):
                mq.consumer("g", "orders", start="begin")
            with pytest.raises(BadRequest, match="no time zone"):
                mq.consumer("g", "orders", start=middle.replace(tzinfo=None))

    run(scenario)


def test_tags_are_compared_exactly_also_where_their_hashes_agree(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as mq:
            for tag in ("Aa", "BB", "C"):  # "Aa" and "BB" have the same Java hash
                await send(mq, "orders", [tag], tag=tag, queue_id=0)
            async with mq.consumer("exact", "orders", tags="Aa || C") as inbox:
                assert await collect(inbox, 2) == ["Aa", "C"]
                await nothing_more(inbox)
                assert set(inbox.positions().values()) == {0, 3}

    run(scenario)


def test_sql_filters_by_properties_and_a_bad_condition_is_refused_at_the_start(
    orbitmq_server: Server,
) -> None:
    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as mq:
            for amount in ("5", "50", "500"):
                await send(mq, "orders", [amount], properties={"amount": amount})
            async with mq.consumer("rich", "orders", sql="amount > 10") as inbox:
                assert sorted(await collect(inbox, 2)) == ["50", "500"]
            async with mq.consumer("both", {"orders": Sql("amount = 5"), "other": "x || y"}) as inbox:
                assert await collect(inbox, 1) == ["5"]
            with pytest.raises(OrbitMQError, match="filter of topic 'orders' is refused"):
                await mq.consumer("broken", "orders", sql="amount >").start()

    run(scenario)


def test_a_member_that_subscribes_differently_is_refused_by_name(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as one, connect(orbitmq_server.namesrv) as two:
            async with one.consumer("billing", "orders", tags="paid || refund"):
                with pytest.raises(SubscriptionMismatch) as caught:
                    await two.consumer("billing", "orders", tags="paid").start()
                text = str(caught.value)
                assert "subscribes to orders (paid), but member" in text
                assert one.client_id in text and "orders (paid || refund)" in text
                assert "allow_mixed=True" in caught.value.hint
                with pytest.raises(SubscriptionMismatch, match="would be BROADCASTING"):
                    await two.consumer("billing", "orders", broadcast=True).start()
                async with two.consumer("billing", "orders", tags="refund||paid"):
                    await asyncio.sleep(0)
                async with two.consumer("billing", "orders", tags="paid", allow_mixed=True):
                    await asyncio.sleep(0)
            assert not two.scope.closed

    run(scenario)


@pytest.mark.orbitmq(subscriptionMismatch="refuse")
def test_a_broker_that_refuses_a_member_ends_its_start(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        async with (
            connect(orbitmq_server.namesrv) as one,
            connect(orbitmq_server.namesrv) as two,
            one.consumer("billing", "orders", tags="paid"),
        ):
            with pytest.raises(SubscriptionMismatch, match="refuses group 'billing'"):
                await two.consumer("billing", "orders", tags="refund", allow_mixed=True).start()

    run(scenario)


def test_unsettled_messages_stop_their_queue_with_a_word_of_advice(
    orbitmq_server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbitmq.client.holding.STUCK_WARNING_S", 0.05)

    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as mq:
            await send(mq, "orders", range(30), queue_id=0)
            async with mq.consumer("billing", "orders", limits=Limits(messages=10)) as inbox:
                held = [await anext(inbox) for _ in range(10)]
                await nothing_more(inbox)
                with caplog.at_level(logging.WARNING):
                    await until(lambda: "never by asking for the next one" in caplog.text)
                for msg in held:
                    msg.ack()
                assert await collect(inbox, 20) == [str(number) for number in range(10, 30)]

    run(scenario)


def test_offsets_are_reset_while_it_runs(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as mq:
            await send(mq, "orders", range(10), queue_id=0)
            async with mq.consumer("billing", "orders") as inbox:
                await collect(inbox, 10)
                await inbox.commit()
                await apply_reset(mq.cluster, await plan_reset(mq.cluster, "billing", "orders", 0))
                assert await collect(inbox, 10) == [str(number) for number in range(10)]
                await inbox.commit()

    run(scenario)


def test_an_offset_beyond_the_queue_is_corrected(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as mq:
            await send(mq, "orders", range(3), queue_id=0)
            orbitmq_server.inspect(lambda broker: broker.offsets.commit("billing", "orders", 0, 999))
            async with mq.consumer("billing", "orders") as inbox:
                await until(lambda: 3 in inbox.positions().values(), "the offset is the queue's end")
                await send(mq, "orders", ["next"], queue_id=0)
                assert await collect(inbox, 1) == ["next"]

    run(scenario)


def test_consumption_goes_on_after_a_broker_restart(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as mq:
            await send(mq, "orders", range(5))
            async with mq.consumer("billing", "orders", commit_every=0.1) as inbox:
                found = await collect(inbox, 5)
                await asyncio.to_thread(orbitmq_server.stop_broker)
                await asyncio.sleep(0.3)  # commits and pulls fail meanwhile
                await asyncio.to_thread(orbitmq_server.start_broker)
                await send(mq, "orders", range(5, 10))
                while len(set(found)) < 10:
                    found += await collect(inbox, 1)
                await until(lambda: sum(inbox.positions().values()) == 10)
                await inbox.commit()
        saved = orbitmq_server.inspect(
            lambda broker: sum(broker.offsets.query("billing", "orders", queue) for queue in range(4))
        )
        assert saved == 10

    run(scenario)


def test_running_info_and_positions_are_told_to_tools(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as mq, connect(orbitmq_server.namesrv) as tool:
            await send(mq, "orders", range(4), queue_id=1)
            async with mq.consumer("billing", "orders") as inbox:
                await collect(inbox, 4)
                asked = {"consumerGroup": "billing", "clientId": mq.client_id}
                answer = await tool.cluster.request(
                    orbitmq_server.address, request(RequestCode.GET_CONSUMER_RUNNING_INFO, asked)
                )
                info = bodies.decode(bodies.ConsumerRunningInfo, answer.body)
                queue = next(queue for queue in info.mq_table if queue.queue_id == 1)
                assert info.mq_table[queue].commit_offset == 4 and info.mq_table[queue].locked
                assert info.properties["PROP_CONSUMEORDERLY"] == "false"
                assert {data.topic for data in info.subscription_set} == {"orders", "%RETRY%billing"}
                code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
                answer = await tool.cluster.request(
                    orbitmq_server.address, request(code, {"topic": "orders", "group": "billing"})
                )
                status = bodies.decode(bodies.ConsumerStatusBody, answer.body)
                assert status.consumer_table[mq.client_id][queue] == 4

    run(scenario)


def test_a_tool_may_have_one_message_tried(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        tried: list[str] = []

        async def handle(msg: Message) -> None:
            tried.append(msg.text)
            if len(tried) > 2:
                raise ValueError("third time")

        async with connect(orbitmq_server.namesrv) as mq, connect(orbitmq_server.namesrv) as tool:
            (receipt,) = await send(mq, "orders", ["one"])
            ask = {"consumerGroup": "billing", "clientId": mq.client_id, "msgId": receipt.offset_msg_id}
            command = request(RequestCode.CONSUME_MESSAGE_DIRECTLY, ask)
            async with mq.consumer("billing", "orders") as consumer:
                refused = await tool.cluster.ask(orbitmq_server.address, command)
                assert refused.code == ResponseCode.SYSTEM_ERROR and "no handler" in (refused.remark or "")
                task = asyncio.create_task(consumer.run(handle))
                await until(lambda: tried == ["one"])
                results = []
                for _ in range(2):
                    answer = await tool.cluster.request(orbitmq_server.address, command)
                    results.append(bodies.decode(bodies.ConsumeDirectlyResult, answer.body))
                assert [result.consume_result for result in results] == ["CR_SUCCESS", "CR_THROW_EXCEPTION"]
                assert results[1].remark == "ValueError: third time"
                consumer.stop()
                await task
                assert tried == ["one"] * 3

    run(scenario)


def test_a_cancelled_handler_leaves_its_message_for_the_next(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as mq:
            await send(mq, "orders", ["one"])
            async with mq.consumer("billing", "orders") as inbox:

                async def slow() -> None:
                    async with await anext(inbox):
                        entered.set()
                        await asyncio.sleep(60)

                entered = asyncio.Event()
                task = asyncio.create_task(slow())
                await entered.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert await collect(inbox, 1) == ["one"]

    run(scenario)


@pytest.mark.orbitmq(autoCreateTopicEnable=False)
def test_a_topic_that_nobody_would_create_is_refused(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as mq:
            with pytest.raises(NotFound, match="topic 'nowhere' does not exist") as caught:
                await mq.consumer("billing", "nowhere").start()
            assert "topic create nowhere" in caught.value.hint

    run(scenario)


def test_a_topic_may_be_created_after_its_consumer(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        async with (
            connect(orbitmq_server.namesrv) as mq,
            mq.consumer("billing", "fresh", start="first") as inbox,
        ):
            await send(mq, "fresh", ["first"])
            assert await collect(inbox, 1) == ["first"]

    run(scenario)


def test_wrong_use_is_refused_with_its_cause(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        async with connect(orbitmq_server.namesrv) as mq:
            for options, what in (
                ({"tags": "a", "sql": "b = 1"}, "both tags= and sql="),
                ({"ordered": True, "broadcast": True}, "exclude each other"),
                ({"concurrency": 0}, "handles nothing"),
                ({"allocation": "fair"}, "no allocation strategy 'fair'"),
                ({"handover": -1}, "handover is -1 s"),
            ):
                with pytest.raises(BadRequest, match=what):
                    mq.consumer("g", "orders", **options)
            for group, topics, what in (
                ("a b", "orders", "cannot be a consumer group"),
                (7, "orders", "it is int, not text"),
                ("g", [], "subscribes to no topic"),
                ("g", "a b", "'a b' cannot be subscribed to"),
            ):
                with pytest.raises(BadRequest, match=what):
                    mq.consumer(group, topics)  # type: ignore[arg-type]
            idle = mq.consumer("g", "orders")
            with pytest.raises(BadRequest, match="is not started"):
                await anext(idle)
            async with idle:
                with pytest.raises(BadRequest, match="was started before"):
                    await idle.start()
                with pytest.raises(BadRequest, match="has a consumer of group 'g' already"):
                    await mq.consumer("g", "orders").start()

    run(scenario)


def test_interceptors_see_every_block(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        log: list[str] = []

        class Noting(Interceptor):
            @contextmanager
            def handling(self, msg: Any, group: str) -> Iterator[None]:
                log.append(f"{group} begins {msg.text}")
                try:
                    yield
                finally:
                    log.append("ends")

        async with connect(orbitmq_server.namesrv, interceptors=[Noting()]) as mq:
            await send(mq, "orders", ["one"])
            async with mq.consumer("billing", "orders") as inbox:
                async with await anext(inbox) as msg:
                    log.append("handled")
                assert msg.settled
        assert log == ["billing begins one", "handled", "ends"]

    run(scenario)


def test_a_guard_without_a_handler_is_refused(orbitmq_server: Server, tmp_path: Path) -> None:
    async def scenario() -> None:
        guard = Dedup.sqlite(tmp_path / "tokens.db")
        async with (
            connect(orbitmq_server.namesrv) as mq,
            mq.consumer("billing", "orders", dedup=guard) as consumer,
        ):
            with pytest.raises(BadRequest, match="has dedup= and is iterated over"):
                await anext(consumer)

    run(scenario)


def test_closing_the_client_closes_its_consumers(orbitmq_server: Server) -> None:
    async def scenario() -> None:
        mq = connect(orbitmq_server.namesrv)
        await send(mq, "orders", range(3), queue_id=0)
        consumer = await mq.consumer("billing", "orders").start()
        await collect(consumer, 3)
        waiting = asyncio.create_task(anext(consumer, None))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await mq.close()
        assert await waiting is None and consumer.closed
        assert orbitmq_server.inspect(lambda broker: broker.offsets.query("billing", "orders", 0)) == 3
        assert orbitmq_server.inspect(lambda broker: broker.clients.consumer_ids("billing")) == []

    run(scenario)
