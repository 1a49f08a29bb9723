"""A group whose members subscribe differently, on a real broker: found at once, and named everywhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from orbitmq.cli.main import main
from orbitmq.wire import bodies
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command
from tests.broker.fakes import beat, consumer, subscribe
from tests.support.commands import Commands
from tests.support.raw_client import RawClient
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("mismatch"), mappedFileSizeCommitLog=16 << 20) as running:
        yield running


async def join(client: RawClient, group: str, client_id: str, **topics: str) -> Command:
    subscriptions = [subscribe(topic, expression) for topic, expression in topics.items()]
    body = bodies.encode(beat(client_id, consumer(group, *subscriptions, subscribe(f"%RETRY%{group}"))))
    return await client.ask(RequestCode.HEART_BEAT, body=body)


def test_a_mismatch_is_named_in_the_answer_the_log_a_metric_and_the_command(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> tuple[str, str]:
        async with RawClient(server.broker_addr) as one, RawClient(server.broker_addr) as two:
            async with RawClient(server.broker_addr) as odd:
                assert (await join(one, "orders-g", "c-1", Orders="A || B")).remark is None
                assert (
                    await join(two, "orders-g", "c-2", Orders="B||A")
                ).remark is None  # the same, said otherwise
                answer = await join(odd, "orders-g", "c-odd", Orders="A")
                assert answer.code == ResponseCode.SUCCESS  # warned, not refused: clients expect to live
                assert "client c-odd subscribes with 'A' to topic Orders" in (answer.remark or "")
                assert "c-odd" in ((await join(one, "orders-g", "c-1", Orders="A || B")).remark or "")
                args = ["group", "show", "orders-g", "-n", server.namesrv]
                capsys.readouterr()
                assert await asyncio.to_thread(main, args) == 0
                shown = capsys.readouterr().out
                assert await asyncio.to_thread(main, [*args, "--json"]) == 0
                told = capsys.readouterr().out
                status = ["cluster", "status", "broker-a", "--json", "-n", server.namesrv]
                assert await asyncio.to_thread(main, status) == 0
                figures = json.loads(capsys.readouterr().out)
                assert figures["subscriptionMismatchGroups"] == "1"
                assert figures["subscriptionMismatchTotal"] == "1"
            while (await join(one, "orders-g", "c-1", Orders="A || B")).remark is not None:
                await asyncio.sleep(0.02)  # the odd one has hung up: peace again
            return shown, told

    shown, told = asyncio.run(work())
    assert "members subscribe differently and will miss messages:" in shown
    assert "client c-odd subscribes with 'A' to topic Orders where the group uses 'A || B'" in shown
    assert "Orders (A || B)" in shown
    assert '"disagreements":[{"client_id":"c-odd","topic":"Orders","theirs":"A","groups":"A || B"' in told
    assert "members of consumer group orders-g subscribe differently" in server.printed


def test_members_with_other_topics_are_found_too(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> None:
        async with RawClient(server.broker_addr) as one, RawClient(server.broker_addr) as two:
            await join(one, "topics-g", "c-1", Orders="*")
            remark = (await join(two, "topics-g", "c-2", Orders="*", Payments="*")).remark or ""
            assert "client c-2 subscribes with '*' to topic Payments where the group does not" in remark
            assert await asyncio.to_thread(main, ["group", "show", "topics-g", "-n", server.namesrv]) == 0

    asyncio.run(work())
    assert "topic Payments where the group does not" in capsys.readouterr().out


def test_refused_the_odd_member_gets_a_named_error_and_no_share(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    orbitmq = Commands(capsys, server.namesrv)

    async def work() -> None:
        async with RawClient(server.broker_addr) as one, RawClient(server.broker_addr) as odd:
            assert (await join(one, "strict-g", "c-1", Orders="A")).code == 0
            answer = await join(odd, "strict-g", "c-odd", Orders="B")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert (answer.remark or "").startswith(
                "SUBSCRIPTION_MISMATCH: members of consumer group strict-g"
            )
            assert "subscriptionMismatch=warn" in (answer.remark or "")
            members = await one.ok(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "strict-g"})
            assert members.body == b'{"consumerIdList":["c-1"]}'
            # Once it agrees, it may join.
            assert (await join(odd, "strict-g", "c-odd", Orders="A")).code == 0
            figures = (await one.ok(RequestCode.GET_BROKER_RUNTIME_INFO)).body.decode()
            assert '"subscriptionMismatchRefusedTotal":"1"' in figures

    orbitmq.ok("cluster", "config", "broker-a", "--set", "subscriptionMismatch=refuse")
    try:
        asyncio.run(work())
    finally:
        orbitmq.ok("cluster", "config", "broker-a", "--set", "subscriptionMismatch=warn")
