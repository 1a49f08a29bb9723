"""The quick way and the plain way of transactions, side by side; and what a failed commit leaves behind."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orbitmq.net.connection import Connection
from orbitmq.net.limits import Limits
from orbitmq.net.listener import ConnectionRegistry
from orbitmq.store.commit_log import CommitLog
from orbitmq.wire.codes import RequestCode, SysFlag
from orbitmq.wire.command import Command, encode, request
from orbitmq.wire.message import Message
from orbitmq.wire.topics import HALF_TOPIC, OP_TOPIC
from tests.broker.transaction.world import COMMIT, ROLLBACK, UNKNOWN, World
from tests.support.raw_client import send_ext
from tests.support.send_sides import PlainGateway, Wire

TOPIC = "TopicA"


class Side:
    """A broker whose requests come as frames of network reads, the quick way or always the plain way."""

    def __init__(self, root: Path, *, hot: bool) -> None:
        self.world = World(root)
        self.world.send(TOPIC)
        self.world.end(self.world.prepare("first"), ROLLBACK)
        gateway = self.world.gateway
        gateway.handlers.update(self.world.handlers)
        limits = Limits()
        self.wire = Wire("10.1.2.3:4567")
        service = gateway if hot else PlainGateway(gateway)
        self.conn = Connection(cast(Any, service), limits, ConnectionRegistry(limits))
        self.conn.connection_made(self.wire)

    def read(self, *commands: Command) -> list[Command]:
        """One network read."""

        async def run() -> None:
            self.conn.data_received(b"".join(encode(command) for command in commands))
            await asyncio.sleep(0)

        asyncio.run(run())
        return self.wire.answers()

    def seen(self) -> dict[str, list[tuple[object, ...]]]:
        return {
            topic: [
                _essence(message) for queue_id in range(4) for message in self.world.records(topic, queue_id)
            ]
            for topic in (HALF_TOPIC, OP_TOPIC, TOPIC)
        }

    def standing(self) -> object:
        ledger = self.world.transactions.ledger
        return (
            [(h.queue_offset, h.group, h.since_ms, h.immunity_ms, h.checks) for h in ledger.open.values()],
            ledger.progress(),
        )


def _essence(message: Message) -> tuple[object, ...]:
    """Without places in the log: property texts may come in another order, and one commit may hold more."""
    return (
        *(message.topic, message.queue_id, message.queue_offset, message.sys_flag, message.flag),
        *(message.born_ms, message.body, bool(message.prepared_offset)),
        message.properties,
    )


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    made = Side(tmp_path / "hot", hot=True), Side(tmp_path / "plain", hot=False)
    yield made
    for side in made:
        side.world.close()


def half(
    number: int, text: str, *, queue_id: int = 1, sys_flag: int = SysFlag.TX_PREPARED, flag: int = 0
) -> Command:
    ext = send_ext(TOPIC, queue_id, text, f=str(sys_flag), g="1700000000000", h="3")
    command = request(RequestCode.SEND_MESSAGE_V2, ext, b"body %d" % number)
    command.opaque, command.flag = number, flag
    return command


def text(unique: str = "A" * 32, *more: str) -> str:
    return "\x02".join(("TRAN_MSG\x01true", f"UNIQ_KEY\x01{unique}", "WAIT\x01true", "PGROUP\x01pg", *more))


def end(answer: Command, decision: int, *, oneway: bool = True, **changes: str) -> Command:
    ext = {
        "producerGroup": "pg",
        "tranStateTableOffset": answer.ext["queueOffset"],
        "commitLogOffset": str(int(answer.ext["msgId"][16:], 16)),
        "commitOrRollback": str(decision),
        "fromTransactionCheck": "false",
        "msgId": "A" * 32,
        **changes,
    }
    return request(RequestCode.END_TRANSACTION, ext, oneway=oneway)


def test_a_read_shares_one_commit(sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch) -> None:
    commits = counted_commits(sides[0], monkeypatch)
    answers = sides[0].read(*(half(i, text(f"{i:032}")) for i in range(10)))
    assert len(commits) == 1
    sides[0].read(*(end(answer, COMMIT) for answer in answers), half(11, text()))
    assert len(commits) == 2 and len(sides[0].world.records(TOPIC, 1)) == 10


def test_awaited_ends_of_a_read_share_one_commit_and_each_has_its_answer(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    for side, expected in zip(sides, (1, 10), strict=True):
        answers = side.read(*(half(i, text(f"{i:032}")) for i in range(10)))
        ends = [end(answer, COMMIT, oneway=False) for answer in answers]
        for number, command in enumerate(ends):
            command.opaque = 100 + number
        commits = counted_commits(side, monkeypatch)
        said = side.read(*ends)
        assert [(answer.opaque, answer.code) for answer in said] == [(100 + i, 0) for i in range(10)]
        assert len(commits) == expected
        assert len(side.world.records(TOPIC, 1)) == 10


def counted_commits(side: Side, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    commits: list[int] = []
    commit_staged = side.world.store.commit_staged
    monkeypatch.setattr(side.world.store, "commit_staged", lambda: commits.append(1) or commit_staged())
    return commits


def test_a_read_full_of_transactions(sides: tuple[Side, Side]) -> None:
    commits = []
    for side in sides:
        texts = [text(f"{i:032}", *(["TAGS\x01t", f"KEYS\x01k{i} x"] if i % 2 else [])) for i in range(20)]
        answers = side.read(*(half(i, texts[i], queue_id=i % 4) for i in range(20)))
        assert [answer.opaque for answer in answers] == list(range(20))
        assert [answer.ext["queueId"] for answer in answers] == [str(i % 4) for i in range(20)]
        before = side.world.store.log.position
        side.read(*(end(answer, (COMMIT, ROLLBACK, UNKNOWN)[i % 3]) for i, answer in enumerate(answers)))
        side.read(*(end(answer, COMMIT) for answer in answers if answer.opaque % 3 != 2))
        commits.append(side.world.store.log.position - before)
    hot, plain = sides
    assert hot.seen() == plain.seen()
    assert hot.standing() == plain.standing()
    assert commits[0] == commits[1]
    assert len(hot.world.transactions.ledger.open) == 6
    for side in sides:
        side.world.restart()
    assert hot.standing() == plain.standing()


PIECES = st.sampled_from(
    [
        *(
            "TRAN_MSG\x01true",
            "TRAN_MSG\x01TRUE",
            "TRAN_MSG\x01false",
            "PGROUP\x01pg",
            "PGROUP\x01",
            "WAIT\x01true",
        ),
        *(
            "WAIT\x01false",
            "UNIQ_KEY\x01" + "B" * 32,
            "UNIQ_KEY\x01b",
            "UNIQ_KEY\x01é",
            "XUNIQ_KEY\x01c",
            "TAGS\x01t",
        ),
        *(
            "KEYS\x01a b",
            "TAGS\x01",
            "mine\x01v\x01w",
            "DELAY\x011",
            "CHECK_IMMUNITY_TIME_IN_SECONDS\x0130",
            "junk",
        ),
        *("CLUSTER\x01x", "REAL_TOPIC\x01Other", "TRANSACTION_CHECK_TIMES\x013", "größe\x01groß"),
    ]
)


@given(
    texts=st.lists(
        st.one_of(
            st.lists(PIECES, max_size=7).map("\x02".join),
            st.sampled_from([text(), text("a"), text("C" * 56, "TAGS\x01t", "mine\x01v"), text() + "\x02"]),
        ),
        min_size=1,
        max_size=5,
    ),
    queue_id=st.sampled_from([0, 3, -1, 99]),
    sys_flag=st.sampled_from([4, 4, 4, 5, 0, 8, 12, 0x14]),
    flag=st.sampled_from([0, 0, 2]),
    decisions=st.lists(st.sampled_from([COMMIT, ROLLBACK, UNKNOWN, 4]), min_size=5, max_size=5),
    oneway=st.booleans(),
    changes=st.dictionaries(
        st.sampled_from(["producerGroup", "tranStateTableOffset", "commitLogOffset"]),
        st.sampled_from(["pg", "0", "1", "7", "x", "-1", str(1 << 70)]),
        max_size=1,
    ),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_comes_both_ways_do_the_same(
    texts: list[str],
    queue_id: int,
    sys_flag: int,
    flag: int,
    decisions: list[int],
    oneway: bool,
    changes: dict[str, str],
) -> None:
    results = []
    with tempfile.TemporaryDirectory() as root:
        for name in ("hot", "plain"):
            side = Side(Path(root) / name, hot=name == "hot")
            side.world.random.seed(3)
            commands = [
                half(i, one, queue_id=queue_id, sys_flag=sys_flag, flag=flag) for i, one in enumerate(texts)
            ]
            answers = side.read(*commands)
            ends = [
                end(answer, decision, oneway=oneway, **changes)
                for answer, decision in zip(answers, decisions, strict=False)
                if answer.code == 0
            ]
            said = side.read(*ends, *ends)
            results.append(
                (
                    [
                        (a.opaque, a.code, a.remark, a.ext.get("queueId"), a.ext.get("queueOffset"))
                        for a in answers
                    ],
                    [(a.code, a.remark) for a in said],
                    side.seen(),
                    side.standing(),
                )
            )
            side.world.close()
    assert results[0] == results[1]


def fail_once(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    def fail(*_: object) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(CommitLog, "_write_staged", fail)
    return monkeypatch


def test_half_messages_that_could_not_be_written_are_not_open(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    for side in sides:
        before = side.standing()
        with monkeypatch.context() as patch:
            fail_once(patch)
            answers = side.read(half(1, text("1" * 32)), half(2, text("2" * 32)))
        assert [answer.code for answer in answers] == [14, 14]
        assert side.standing() == before
        side.world.store.fault = None
        (answer,) = side.read(half(3, text("3" * 32)))
        side.read(end(answer, COMMIT))
        assert [message.body for message in side.world.records(TOPIC, 1)] == [b"body 3"]


def test_ends_that_could_not_be_written_leave_the_transaction_open(
    sides: tuple[Side, Side], monkeypatch: pytest.MonkeyPatch
) -> None:
    for side in sides:
        answers = side.read(*(half(i, text(f"{i:032}")) for i in range(3)))
        before = side.standing()
        with monkeypatch.context() as patch:
            fail_once(patch)
            said = side.read(end(answers[0], COMMIT, oneway=False), end(answers[1], ROLLBACK))
        assert [answer.code for answer in said] == [14]
        assert side.standing() == before
        assert not side.world.records(TOPIC, 1)
        side.world.store.fault = None
        side.read(*(end(answer, COMMIT) for answer in answers))
        assert len(side.world.records(TOPIC, 1)) == 3 and not side.world.transactions.ledger.open
        side.world.restart()
        assert not side.world.transactions.ledger.open


def test_refused_when_the_broker_takes_none(sides: tuple[Side, Side]) -> None:
    for side in sides:
        side.world.config.reject_transaction_message = True
        (answer,) = side.read(half(1, text()))
        assert answer.code == 16
