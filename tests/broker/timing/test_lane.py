"""Delayed sends, the quick way and the plain way side by side: same records, same answers, same delivery times."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq.broker.broker import Broker
from orbitmq.broker.timing.lane import Lane
from orbitmq.broker.timing.room import Timing
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command, encode, request
from orbitmq.wire.recall import decode_handle
from orbitmq.wire.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from tests.support.raw_client import send_ext
from tests.support.send_sides import PEERS, TOPIC, Side, Wire, answer_essence, essence

UNIQUE = "7F0000010DEA63947C6B8C1A2B3C0000"


class DelayedSide(Side):
    def __init__(self, root: Path, *, hot: bool) -> None:
        super().__init__(root, hot=hot)
        self.woken = 0
        world = cast(Broker, self.world)
        cast(Any, self.world).gateway = self.gateway
        room = SimpleNamespace(_broker=world, _stored=lambda *place: None)
        handler = cast(Any, self.gateway.handlers[RequestCode.SEND_MESSAGE_V2]).__self__
        handler.diverters.append(lambda draft: Timing.divert(cast(Timing, room), draft))
        self.gateway.hot_send.delayed = Lane(world, self._wake).take

    def _wake(self) -> None:
        self.woken += 1

    def ask(self, *commands: Command, wire: Wire | None = None) -> list[Command]:
        async def run() -> list[Command]:
            answers = self.read(wire or Wire(PEERS[0]), [encode(command) for command in commands])
            await asyncio.sleep(0)
            return answers

        return asyncio.run(run())


asks = st.sampled_from(
    [
        *(
            "DELAY\x011",
            "DELAY\x013",
            "DELAY\x0118",
            "DELAY\x0199",
            "DELAY\x010",
            "DELAY\x01-1",
            "DELAY\x01x",
            "DELAY\x01",
        ),
        *(
            "TIMER_DELAY_SEC\x015",
            "TIMER_DELAY_MS\x01700",
            "TIMER_DELIVER_MS\x011",
            "TIMER_DELIVER_MS\x01far",
        ),
        *("TIMER_DELAY_SEC\x0199999999", "TIMER_DEL_UNIQKEY\x01x", "TIMER_OUT_MS\x015", "XDELAY\x011", ""),
    ]
)
others = st.sampled_from(
    [
        *("WAIT\x01true", "WAIT\x01true", "WAIT\x01false", "TAGS\x01A", "KEYS\x01k1 k2", "TRAN_MSG\x01true"),
        *(
            "REAL_TOPIC\x01Other",
            "CLUSTER\x01mine",
            "a\x01\x03\x03\x03\x03\x03\x03\x03\x03",
            "b\x01日本",
            "c",
        ),
        *(f"UNIQ_KEY\x01{UNIQUE}", "UNIQ_KEY\x01short", "UNIQ_KEY\x01", "MSG_TYPE\x01reply"),
    ]
)


@st.composite
def sends(draw: st.DrawFn) -> Command:
    usual = [f"UNIQ_KEY\x01{draw(st.integers(0, 9)):032X}", "WAIT\x01true", draw(asks)]
    pairs = draw(st.permutations(usual + draw(st.lists(others | asks, max_size=2))))
    text = "\x02".join(pairs) + draw(st.sampled_from(["", "\x02"]))
    ext = send_ext(
        TOPIC, draw(st.sampled_from([0, 1, 2, 9])), text, f=str(draw(st.sampled_from([0, 1, 0x10])))
    )
    command = request(RequestCode.SEND_MESSAGE_V2, ext, draw(st.sampled_from([b"x", b"body" * 50])))
    command.flag, command.opaque = draw(st.sampled_from([0, 0, 0, 2])), draw(st.integers(0, 1 << 30))
    return command


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(sends(), min_size=1, max_size=5), min_size=1, max_size=4), st.sampled_from(PEERS))
def test_both_ways_store_and_answer_the_same(reads: list[list[Command]], peer: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        hot, plain = DelayedSide(Path(root, "hot"), hot=True), DelayedSide(Path(root, "plain"), hot=False)
        wires = Wire(peer), Wire(peer)
        try:
            for commands in reads:
                answers, expected = hot.ask(*commands, wire=wires[0]), plain.ask(*commands, wire=wires[1])
                assert sorted(map(answer_essence, answers), key=repr) == sorted(
                    map(answer_essence, expected), key=repr
                )
            assert [essence(m) for m in hot.messages()] == [essence(m) for m in plain.messages()]
            assert hot.units() == plain.units()
        finally:
            hot.close()
            plain.close()


@pytest.fixture
def hot(tmp_path: Path) -> DelayedSide:
    side = DelayedSide(tmp_path, hot=True)
    side.gateway.hot_send._slow = lambda *frame: pytest.fail("this message is as common as can be")
    return side


def delayed(number: int, ask: str, **changes: str) -> Command:
    text = f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02{ask}"
    command = request(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 1, text, **changes), b"body")
    command.opaque = number
    return command


def test_common_delayed_sends_take_the_quick_way_and_share_a_commit(hot: DelayedSide) -> None:
    asked = ["DELAY\x013", "DELAY\x013\x02TAGS\x01A", "TIMER_DELAY_MS\x01500", "DELAY\x013\x02KEYS\x01k"]
    answers = hot.ask(*(delayed(number, ask) for number, ask in enumerate(asked)))
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 4
    stored = hot.messages()
    assert [message.topic for message in stored] == [
        SCHEDULE_TOPIC,
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        SCHEDULE_TOPIC,
    ]
    assert len({message.store_ms for message in stored}) == 1
    handles = [decode_handle(answer.ext["recallHandle"]) for answer in answers]
    assert [handle.topic for handle in handles] == [TOPIC] * 4
    assert handles[0].deliver_ms == stored[0].store_ms + 10_000
    assert handles[2].deliver_ms == stored[2].store_ms + 500


def test_only_what_is_due_soon_wakes_the_clockwork(hot: DelayedSide) -> None:
    hot.ask(delayed(1, "DELAY\x013"), delayed(2, "TIMER_DELAY_SEC\x0150"))
    assert hot.woken == 0
    hot.ask(delayed(3, "DELAY\x011"), delayed(4, "TIMER_DELAY_MS\x0120"))
    assert hot.woken == 1


def test_a_new_cluster_name_is_taken_over(hot: DelayedSide) -> None:
    hot.ask(delayed(1, "DELAY\x013"))
    hot.world.config.broker_cluster_name = "Renamed"
    hot.ask(delayed(2, "DELAY\x013"))
    assert [message.properties["CLUSTER"] for message in hot.messages()][1] == "Renamed"
