"""Open transactions of several brokers, page by page."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orbitmq.client.admin.half import HalfMessages, half_messages
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError
from orbitmq.net.connection import Connection
from orbitmq.wire import fastjson
from orbitmq.wire.codes import OrbitCode
from orbitmq.wire.command import Command
from tests.support.fake_servers import FakeServer, fake_cluster, reply


def row(offset: int, born_ms: int) -> dict[str, Any]:
    return {
        "bodySize": 3,
        "bornHost": "10.0.0.1:1",
        "bornTimestamp": born_ms,
        "checkTimes": 2,
        "immunityTime": 6000,
        "keys": "a b",
        "msgId": f"M{offset}",
        "offsetMsgId": "X",
        "producerGroup": "g",
        "producersOnline": 1,
        "queueId": 0,
        "queueOffset": offset,
        "storeTimestamp": born_ms + 1,
        "tags": "",
        "topic": "T",
    }


def pages(*born: int) -> Any:
    """A broker that hands out one row per page."""

    def answer(conn: Connection, command: Command) -> Command:
        offset = int(command.ext["fromOffset"])
        body = {
            "halfMessages": [row(offset, born[offset])],
            "nextOffset": offset + 1 if offset + 1 < len(born) else -1,
            "open": len(born),
            "transactionCheckMax": 15,
        }
        return command.reply(body=fastjson.dumps(body))

    return answer


def ask(*brokers: Any, **options: Any) -> HalfMessages:
    async def run() -> HalfMessages:
        async with fake_cluster(*({OrbitCode.LIST_HALF_MESSAGES: answer} for answer in brokers)) as fake:
            for broker in fake.brokers.values():
                _teach(broker)
            async with Cluster(fake.namesrv.addr) as cluster:
                return await half_messages(cluster, **options)

    return asyncio.run(run())


def _teach(broker: FakeServer) -> None:
    """The scripted server only listens to the codes of the compatible protocol by itself."""
    assert broker._service is not None
    broker._service.handlers[OrbitCode.LIST_HALF_MESSAGES] = broker._recording(OrbitCode.LIST_HALF_MESSAGES)


def test_all_pages_of_all_brokers_oldest_first() -> None:
    found = ask(pages(10, 30), pages(20))
    assert [(m.broker, m.born_ms) for m in found.messages] == [
        ("broker-a", 10),
        ("broker-b", 20),
        ("broker-a", 30),
    ]
    assert found.open == 3 and not found.missing
    first = found.messages[0]
    assert (first.keys, first.tag, first.first_check_ms, first.max_checks) == (["a", "b"], None, 6010, 15)


def test_no_more_than_wanted() -> None:
    found = ask(pages(*range(50)), max_num=3)
    assert [m.born_ms for m in found.messages] == [0, 1, 2] and found.open == 50


def test_a_broker_of_another_make_is_named_and_nothing_is_summed_up() -> None:
    found = ask(pages(1), reply(3, remark="not supported"))
    assert found.open is None and [item.broker for item in found.missing] == ["broker-b"]
    assert len(found.messages) == 1


def test_an_answer_that_makes_no_sense() -> None:
    with pytest.raises(OrbitMQError, match="not understood"):
        ask(reply(body=b'{"open":"x"}'))
