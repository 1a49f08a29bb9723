"""Pulls that were found good before take a shorter way: it answers as the whole way does, whatever has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq import accel
from orbitmq.broker import pull
from orbitmq.broker.groups import GroupConfig
from orbitmq.broker.pull_lanes import MOST_LANES, Lanes
from orbitmq.broker.topic_config import TopicConfig
from orbitmq.config_model import BrokerRole
from orbitmq.wire.codes import Perm, PullFlag, ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.subscription import build_subscription
from tests.accel.direct import framed, header
from tests.broker.fakes import beat, consumer
from tests.support.send_sides import PEERS, Side, Wire

if accel.read_pull is None:
    pytest.skip("the accelerator is not built", allow_module_level=True)

TOPIC, GROUP = "Quick", "readers"
QUEUES = 2


class Stage:
    """One broker; every pull is made twice, the short way where it can be gone, and the whole way."""

    def __init__(self, root: Path) -> None:
        self.side = Side(root, hot=True)
        self.world = self.side.world
        cast(Any, self.world).suggested_broker_id = lambda group, result: 0
        self.gateway = self.side.gateway
        self.world.store.dispatcher.arrived = self.gateway.pulls.arrived
        self.world.store.dispatcher.all_arrived = self.gateway.pulls.together.release
        self.topic()
        self.world.online(GROUP, "c1", TOPIC)
        self.quick, self.whole = Wire(PEERS[0]), Wire(PEERS[0])
        self.taken = 0
        self._opaque = 0

    def topic(self, **more: Any) -> None:
        self.world.topics.put(TopicConfig(TOPIC, QUEUES, QUEUES, **more), self.world.now)

    def put(self, queue_id: int = 0, count: int = 1) -> None:
        for _ in range(count):
            self.world.put(TOPIC, queue_id, b"body")

    def pull(self, offset: int, queue_id: int = 0, **more: object) -> tuple[list[Command], list[Command]]:
        """The answers of both ways, as long as the pull is not held."""
        self._opaque += 1
        ext = {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "0",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subVersion": "0",
            **{name: str(value) for name, value in more.items()},
        }
        frame = framed(header(11, ext, self._opaque), b"")
        # As the whole way does it first: what it remembers is there for the short way.
        whole = self._read(self.whole, frame, short=False)
        handler = self.gateway.pulls
        before, handler._start = handler._start, self._count(handler._start)  # type: ignore[method-assign]
        self.taken += 1
        try:
            quick = self._read(self.quick, frame, short=True)
        finally:
            handler._start = before  # type: ignore[method-assign]
        return quick, whole

    def _count(self, start: Callable[..., None]) -> Callable[..., None]:
        def counted(*args: Any) -> None:
            self.taken -= 1
            start(*args)

        return counted

    def _read(self, wire: Wire, frame: bytes, *, short: bool) -> list[Command]:
        built = pull.read_pull, pull.found_page
        if not short:
            cast(Any, pull).read_pull = cast(Any, pull).found_page = None
        try:
            return self.side.read(wire, [frame])
        finally:
            pull.read_pull, pull.found_page = built

    def same(self, offset: int, queue_id: int = 0, **more: object) -> Command | None:
        quick, whole = self.pull(offset, queue_id, **more)
        assert [told(answer) for answer in quick] == [told(answer) for answer in whole]
        return quick[0] if quick else None


def told(answer: Command) -> tuple[object, ...]:
    return answer.code, answer.flag, answer.opaque, answer.ext, answer.remark, answer.body


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.side.close()


def test_what_is_found_and_where_it_ends(stage: Stage) -> None:
    stage.put(0, 70)
    stage.same(0)
    assert stage.taken == 0, "the first pull goes the whole way and is remembered"
    for offset in (0, 32, 64, 69, 70, 71, 1000, -1):
        stage.same(offset)
    for most in (0, -3, 1, 31, 33, 5000):
        stage.same(3, maxMsgNums=most)
    for page in (1, 300, 1 << 20, -1):
        stage.same(3, maxMsgNums=5000, pageBytes=page)
    stage.same(0, 1)
    stage.same(0, QUEUES)
    assert stage.taken > 10


def test_offsets_are_committed_on_the_way(stage: Stage) -> None:
    stage.put(0, 5)
    stage.same(0)
    stage.same(3, sysFlag=PullFlag.COMMIT_OFFSET, commitOffset=3)
    assert stage.taken == 1
    assert stage.world.offsets.query(GROUP, TOPIC, 0) == 3
    stage.same(5, sysFlag=PullFlag.COMMIT_OFFSET | PullFlag.SUSPEND, suspendTimeoutMillis=100, commitOffset=5)
    assert stage.taken == 2
    assert stage.world.offsets.query(GROUP, TOPIC, 0) == 5


def test_a_pull_at_the_end_is_held_and_answered_when_something_comes(stage: Stage) -> None:
    stage.put(0, 5)
    stage.same(0)
    assert stage.same(5, sysFlag=PullFlag.SUSPEND, suspendTimeoutMillis=1000) is None
    assert stage.taken == 1
    assert stage.gateway.pulls.held_count == 2
    stage.put(0, 3)
    quick, whole = stage.quick.answers(), stage.whole.answers()
    assert [told(answer) for answer in quick] == [told(answer) for answer in whole]
    assert [answer.ext["nextBeginOffset"] for answer in quick] == ["6"]


def test_a_held_pull_whose_time_is_over(stage: Stage) -> None:
    stage.put(0, 5)
    stage.same(0)
    stage.same(5, sysFlag=PullFlag.SUSPEND, suspendTimeoutMillis=1000)
    stage.gateway.pulls.expire(stage.world.now + 1001)
    quick, whole = stage.quick.answers(), stage.whole.answers()
    assert [told(answer) for answer in quick] == [told(answer) for answer in whole]
    assert [answer.code for answer in quick] == [ResponseCode.PULL_NOT_FOUND]


def revoke_topic(stage: Stage) -> None:
    stage.topic(perm=Perm.WRITE)


def shrink_topic(stage: Stage) -> None:
    stage.world.topics.put(TopicConfig(TOPIC, 0, QUEUES), stage.world.now)


def delete_topic(stage: Stage) -> None:
    stage.world.topics.delete(TOPIC, stage.world.now)


def disable_group(stage: Stage) -> None:
    stage.world.groups.put(GroupConfig(GROUP, consume_enable=False), stage.world.now)


def leave(stage: Stage) -> None:
    if (members := stage.world.clients.consumer_group(GROUP)) is not None:
        for conn in list(members.members):
            stage.world.clients.connection_lost(conn)


def narrow(stage: Stage) -> None:
    """The group wants one tag only from now on."""
    changed = consumer(GROUP, build_subscription(TOPIC, "rare", "TAG", version_ms=9))
    stage.world.clients.heartbeat(
        stage.world.online(GROUP), beat("c1", changed), "JAVA", 407, stage.world.now
    )


def broadcast(stage: Stage) -> None:
    """The group may not, and from now on does."""
    stage.world.groups.put(GroupConfig(GROUP, consume_broadcast_enable=False), stage.world.now)
    stage.same(0)
    stage.world.online(GROUP, "c2", TOPIC, model="BROADCASTING")


def forbid(stage: Stage) -> None:
    stage.world.config.broker_permission = Perm.WRITE


def become_slave(stage: Stage) -> None:
    stage.world.config.broker_role = BrokerRole.SLAVE
    stage.world.serves_reads = False


@pytest.mark.parametrize(
    "change",
    [revoke_topic, shrink_topic, delete_topic, disable_group, leave, narrow, broadcast, forbid, become_slave],
)
def test_a_change_is_noticed(stage: Stage, change: Callable[[Stage], None]) -> None:
    stage.put(0, 5)
    first = stage.same(0)
    assert first is not None
    assert first.code == ResponseCode.SUCCESS
    stage.same(0)
    change(stage)
    taken = stage.taken
    answer = stage.same(0)
    assert stage.taken == taken, "the whole way is gone again"
    assert answer is not None
    assert answer.code != ResponseCode.SUCCESS


def test_a_newer_subscription_than_the_brokers_is_noticed(stage: Stage) -> None:
    stage.put(0, 5)
    stage.same(0)
    stage.same(0)
    answer = stage.same(0, subVersion=1 << 50)
    assert answer is not None
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


def test_a_pull_that_brings_its_own_subscription(stage: Stage) -> None:
    stage.put(0, 5)
    own = {"sysFlag": PullFlag.SUBSCRIPTION, "subscription": "*", "expressionType": "TAG"}
    leave(stage)
    for _ in range(3):
        answer = stage.same(0, **own)
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
    assert stage.taken == 2
    answer = stage.same(0, **{**own, "sysFlag": 0})
    assert answer is not None
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST, "the same texts, but not to be used"
    answer = stage.same(0, **{**own, "subscription": "rare"})
    assert answer is not None
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY


def test_what_is_remembered_is_bounded(stage: Stage) -> None:
    lanes = Lanes(cast(Any, stage.world))
    stage.put(0)
    stage.world.groups.find(GROUP, 0)
    for number in range(MOST_LANES + 5):
        lanes.remember(b"%d" % number, GROUP, TOPIC, 0, 0)
    assert set(lanes.known) == {b"%d" % number for number in range(MOST_LANES, MOST_LANES + 5)}


steps = st.one_of(
    st.tuples(st.just("put"), st.integers(0, QUEUES - 1), st.integers(1, 40)),
    st.tuples(st.just("pull"), st.integers(0, QUEUES), st.integers(-1, 90)),
    st.tuples(st.just("wait"), st.integers(0, QUEUES - 1), st.integers(0, 90)),
    st.tuples(
        st.just("change"),
        st.sampled_from([revoke_topic, Stage.topic, delete_topic, disable_group, leave, narrow]),
        st.just(0),
    ),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=30))
def test_any_course_of_events_has_the_same_answers(
    tmp_path_factory: pytest.TempPathFactory, course: list[tuple[str, Any, int]]
) -> None:
    stage = Stage(tmp_path_factory.mktemp("quick"))
    try:
        for kind, what, number in course:
            if kind == "put":
                stage.put(what, number)
            elif kind == "pull":
                stage.same(number, what)
            elif kind == "wait":
                stage.same(number, what, sysFlag=PullFlag.SUSPEND, suspendTimeoutMillis=5000)
            else:
                what(stage)
            quick, whole = stage.quick.answers(), stage.whole.answers()
            assert [told(answer) for answer in quick] == [told(answer) for answer in whole]
    finally:
        stage.side.close()
