"""Transactions of the client against a real broker that asks quickly."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from orbitmq.client.check_back import CheckBack, TxState, transaction_id_of
from orbitmq.client.client import Client, connect
from orbitmq.client.errors import BadRequest, Closed, OrbitMQError, Refused
from orbitmq.client.message import Message
from orbitmq.client.producer import Producer
from orbitmq.client.tracing import Interceptors
from orbitmq.client.transactions import Transaction
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.message import encode_record
from tests.client.live import SMALL, bodies, run, until_stored
from tests.support.fake_servers import fake_cluster, reply
from tests.support.server_process import BrokerProcess, ServerProcess

QUICK = {"transactionTimeOut": 100, "transactionCheckInterval": 200}
OFFSET_ID = "7F00000100002A9F0000000000000000"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("transactions"), **QUICK, **SMALL) as running:
        yield running


async def made(mq: Client, *topics: str) -> None:
    for topic in topics:
        await mq.admin.create_topic(topic, queues=1)


def test_committed_messages_appear_together_and_not_before(server: ServerProcess) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            await made(mq, "TxOrders", "TxStock")
            producer = mq.producer("tx-commit")
            async with producer.transaction("TxOrders", b"order", tag="new", keys="o-1") as tx:
                await tx.send("TxStock", b"stock", properties={"sku": "7"})
                await tx.send("TxStock", b"more", order_key="sku-7")
                assert await bodies(mq, "TxOrders") == await bodies(mq, "TxStock") == []
                assert tx.id and len(tx.receipts) == 3
            assert tx.state is TxState.COMMIT
            assert await until_stored(mq, "TxOrders", 1) == [b"order"]
            assert await until_stored(mq, "TxStock", 2) == [b"more", b"stock"]

    run(main)


def test_an_exception_rolls_everything_back_and_passes_on(server: ServerProcess) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            await made(mq, "TxBack", "TxBackToo")
            checked: list[str] = []
            producer = mq.producer("tx-back", check=lambda message: checked.append(message.msg_id))
            tx = producer.transaction("TxBack", b"1")
            with pytest.raises(LookupError, match="no stock"):
                await _fail_inside(tx)
            assert tx.state is TxState.ROLLBACK
            async with producer.transaction("TxBack", b"3") as tx:
                tx.rollback()
            assert tx.state is TxState.ROLLBACK
            task = asyncio.create_task(_stay_open(producer))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.5)  # time enough for two rounds of questions
            assert await bodies(mq, "TxBack") == await bodies(mq, "TxBackToo") == []
            assert checked == []

    run(main)


async def _fail_inside(tx: Transaction) -> None:
    async with tx:
        await tx.send("TxBackToo", b"2")
        raise LookupError("no stock")


async def _stay_open(producer: Producer) -> None:
    async with producer.transaction("TxBack", b"4"):
        await asyncio.sleep(60)


def test_a_failed_second_message_rolls_the_first_back(server: ServerProcess) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            await made(mq, "TxFirst")
            producer = mq.producer("tx-first")
            with pytest.raises(BadRequest, match="the body is empty"):
                async with producer.transaction("TxFirst", b"1") as tx:
                    await tx.send("TxFirst", b"")
            with pytest.raises(BadRequest, match="the body is empty"):
                async with producer.transaction("TxFirst", b""):
                    raise AssertionError("not entered")
            await asyncio.sleep(0.3)
            assert await bodies(mq, "TxFirst") == []

    run(main)


def test_a_long_transaction_is_asked_for_and_waited_for(server: ServerProcess) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            await made(mq, "TxLong")
            asked: list[str] = []
            producer = mq.producer("tx-long", check=lambda message: asked.append(message.msg_id) or False)
            async with producer.transaction("TxLong", b"patience"):
                await asyncio.sleep(0.7)
            assert asked == []  # the producer itself knows that the block is still running
            assert await until_stored(mq, "TxLong", 1) == [b"patience"]

    run(main)


def test_the_next_life_of_a_producer_decides_what_the_last_one_left_open(server: ServerProcess) -> None:
    async def main() -> None:
        database: set[str] = set()
        async with connect(server.namesrv) as mq:
            await made(mq, "TxDied", "TxDiedToo")
        first = await connect(server.namesrv)
        producer = first.producer("tx-died")
        kept, lost = producer.transaction("TxDied", b"kept"), producer.transaction("TxDied", b"lost")
        await kept.__aenter__()
        await kept.send("TxDiedToo", b"kept too")
        database.add(kept.id)
        await lost.__aenter__()
        await first.close()  # neither was ended: as if the process had died

        async with connect(server.namesrv) as mq:
            second = mq.producer("tx-died")
            asked: list[bytes] = []

            @second.on_check
            async def in_database(message: Message) -> bool:
                await asyncio.sleep(0)
                asked.append(message.body)
                return transaction_id_of(message) in database

            assert await until_stored(mq, "TxDied", 1) == [b"kept"]
            assert await until_stored(mq, "TxDiedToo", 1) == [b"kept too"]
            while b"lost" not in asked:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.3)
            assert await bodies(mq, "TxDied") == [b"kept"]

    run(main)


def test_a_commit_that_does_not_get_through_is_given_when_the_broker_asks(
    server: ServerProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with connect(server.namesrv, timeout=0.5) as mq:
            await mq.admin.create_topic("TxLate", queues=1, broker="broker-late")
            producer = mq.producer("tx-late")
            async with producer.transaction("TxLate", b"late") as tx:
                await asyncio.sleep(0.2)  # the new topic has reached the broker's disk
                other.kill()
            assert tx.state is TxState.COMMIT
            other.start()
            assert await until_stored(mq, "TxLate", 1) == [b"late"]

    with (
        BrokerProcess(tmp_path, server.namesrv, "broker-late", **QUICK, **SMALL) as other,
        caplog.at_level(logging.WARNING, "orbitmq.client"),
    ):
        run(main, limit_s=30)
    assert "COMMIT was not delivered, the broker will ask for it" in caplog.text


def test_misuse_is_named(server: ServerProcess) -> None:
    async def main() -> None:
        async with connect(server.namesrv) as mq:
            producer = mq.producer("tx-misuse")
            with pytest.raises(BadRequest, match="a topic without a body"):
                producer.transaction("TxMisuse")
            tx = producer.transaction()
            with pytest.raises(BadRequest, match="the transaction is not entered yet"):
                await tx.send("TxMisuse", b"x")
            async with tx:
                pass
            with pytest.raises(BadRequest, match="the transaction is ended"):
                await tx.send("TxMisuse", b"x")
            with pytest.raises(BadRequest, match="the transaction is ended"):
                await tx.__aenter__()
        with pytest.raises(Closed):
            await producer.transaction("TxMisuse", b"x").__aenter__()

    run(main)


def test_a_prepared_message_that_is_not_safe_is_rolled_back() -> None:
    async def main() -> None:
        ext = {"msgId": OFFSET_ID, "queueId": "0", "queueOffset": "5"}
        weak = {
            RequestCode.HEART_BEAT: reply(),
            RequestCode.UNREGISTER_CLIENT: reply(),
            RequestCode.SEND_MESSAGE_V2: reply(ResponseCode.FLUSH_DISK_TIMEOUT, ext=ext),
            RequestCode.END_TRANSACTION: reply(),
        }
        async with fake_cluster(weak) as fake, connect(fake.namesrv.addr) as mq:
            with pytest.raises(OrbitMQError, match="its disk had not confirmed in time"):
                async with mq.producer("g").transaction("TopicA", b"x"):
                    raise AssertionError("not entered")
            (end,) = fake.brokers["broker-a"].requests(RequestCode.END_TRANSACTION)
            assert end.ext["commitOrRollback"] == "12"
            assert end.ext["tranStateTableOffset"] == "5" and end.ext["commitLogOffset"] == "0"
            fake.brokers["broker-a"].answers[RequestCode.SEND_MESSAGE_V2] = reply(13, remark="no")
            with pytest.raises(Refused):
                async with mq.producer("g").transaction("TopicA", b"x"):
                    raise AssertionError("not entered")

    run(main)


class _Channel:
    """Keeps what a check is answered with."""

    def __init__(self) -> None:
        self.sent: list[Command] = []

    def oneway(self, command: Command) -> None:
        self.sent.append(command)


@pytest.mark.parametrize(
    ("verdict", "state"), [(True, "8"), (False, "12"), (None, "0"), (TxState.COMMIT, "8"), ("yes", "0")]
)
def test_verdicts(verdict: object, state: str) -> None:
    async def main() -> None:
        check_back = CheckBack("g", Interceptors(()))
        check_back.handler = lambda message: verdict  # type: ignore[assignment, return-value]
        assert await _ask(check_back) == [state]

        def fail(message: Message) -> bool:
            raise RuntimeError("no database")

        check_back.handler = fail
        assert await _ask(check_back) == ["0"]
        check_back.handler = None
        assert await _ask(check_back) == []
        assert await _ask(check_back, group="other") == []

    run(main)


def test_what_is_remembered_is_answered_without_the_handler() -> None:
    async def main() -> None:
        check_back = CheckBack("g", Interceptors(()))
        check_back.open("TX")
        assert await _ask(check_back) == ["0"]
        check_back.decided("TX", TxState.COMMIT)
        assert await _ask(check_back) == ["8"]
        check_back.settled("TX")
        assert await _ask(check_back) == []

    run(main)


async def _ask(check_back: CheckBack, group: str = "g") -> list[str]:
    properties = (
        f"TRAN_MSG\x01true\x02PGROUP\x01{group}\x02UNIQ_KEY\x01M1\x02__transactionId__\x01TX".encode()
    )
    record = encode_record(topic="T", body=b"half", properties=properties)
    ext = {"tranStateTableOffset": "3", "commitLogOffset": "4", "msgId": "M1", "transactionId": "M1"}
    channel = _Channel()
    command = request(RequestCode.CHECK_TRANSACTION_STATE, ext, record, oneway=True)
    work = check_back.serve(channel, command)  # type: ignore[arg-type]
    if work is not None:
        await work
    for sent in channel.sent:
        assert sent.ext["fromTransactionCheck"] == "true"
        assert (sent.ext["tranStateTableOffset"], sent.ext["commitLogOffset"]) == ("3", "4")
    return [sent.ext["commitOrRollback"] for sent in channel.sent]
