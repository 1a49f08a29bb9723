"""One group whose members are the official Java client, the Go client and this project's: they share the queues.

Messages are sent all the time. While members come and go some may be delivered twice, because whoever takes a queue
begins where its progress was last saved; those are counted. While nobody comes or goes, each arrives exactly once.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import orbitmq
from tests.client.suite.world import until
from tests.peer.java_peer import JavaPeer
from tests.peer.members import Foreign, Native, Record, build_go_member, go_member, java_member
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.peer

QUEUES = 12
GROUP, TOPIC = "mixed-group", "mixed"
STEADY_MESSAGES = 600
WINDOW_S = 0.6
SETTLE_LIMIT_S = 45.0
SAVED_EVERY_S = 5.0
SMALL: dict[str, str | int] = {"mappedFileSizeCommitLog": 64 << 20}


@pytest.fixture(scope="module")
def go_program() -> Path | None:
    return build_go_member()


@pytest.fixture(params=["orbitmq", "java"])
def namesrv(request: pytest.FixtureRequest) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="orbitmq-mixed-") as root:
        if request.param == "orbitmq":
            with ServerProcess(Path(root), **SMALL) as server:
                yield server.namesrv
        else:
            with JavaPeer(Path(root) / "store", SMALL) as java:
                java.start()
                yield java.namesrv


class Group:
    """The members that should share the queues now, and the traffic they share."""

    def __init__(self, mq: orbitmq.Client, record: Record) -> None:
        self.members: list[Native | Foreign] = []
        self.moving_sent = 0
        self.pauses_s: dict[str, float] = {}
        self._producer = mq.producer("mixed-producers")
        self._record = record
        self._steady = itertools.count()
        self._flowing: asyncio.Task[None] | None = None
        self._enough = False

    async def join(self, member: Native | Foreign) -> None:
        self._flow()
        await member.start()
        self.members.append(member)
        await self._settle(f"{member.name} joins")

    async def leave(self, member: Native | Foreign, *, killed: bool = False) -> None:
        self._flow()
        self.members.remove(member)
        if killed and isinstance(member, Foreign):
            await member.kill()
        else:
            await member.leave()
        await self._settle(f"{member.name} {'is killed' if killed else 'leaves'}")

    def _flow(self) -> None:
        async def flow() -> None:
            while not self._enough:
                for _ in range(QUEUES):  # round robin: one for every queue
                    await self._producer.send(TOPIC, b"moving %d" % self.moving_sent)
                    self.moving_sent += 1
                await asyncio.sleep(0.03)

        self._enough = False
        self._flowing = asyncio.create_task(flow())

    async def _settle(self, what: str) -> None:
        """Until every queue has one owner, each member its share, and all that was sent has arrived."""
        began = time.monotonic()
        names = {member.name for member in self.members}

        def shared_fairly() -> bool:
            owners = self._record.owners(WINDOW_S)
            if len(owners) != QUEUES or any(len(who) != 1 for who in owners.values()):
                return False
            shares = [sum(who == {name} for who in owners.values()) for name in names]
            return sum(shares) == QUEUES and max(shares) - min(shares) <= 1

        await self._until(shared_fairly, f"{what}: the queues are not shared fairly")
        assert self._flowing is not None
        self._enough = True
        await self._flowing
        self.pauses_s[what] = time.monotonic() - began
        await self._until(lambda: not self.missing(), f"{what}: messages do not arrive")

    def missing(self) -> list[str]:
        sent = [f"moving {n}" for n in range(self.moving_sent)]
        return [body for body in sent if not self._record.counts[body]]

    async def steady(self) -> None:
        """Nobody comes or goes: everything arrives once, and every member takes part."""
        numbers = list(itertools.islice(self._steady, STEADY_MESSAGES))
        sent = {f"steady {n}" for n in numbers}
        before = len(self._record.got)
        await asyncio.gather(*(self._producer.send(TOPIC, body.encode()) for body in sorted(sent)))
        counts = self._record.counts
        await self._until(lambda: all(counts[body] for body in sent), "steady messages do not arrive")
        # A second delivery would follow within the time in which members save their progress.
        await asyncio.sleep(0.5)
        assert [body for body in sent if counts[body] > 1] == []
        shares = {got.member for got in self._record.got[before:] if got.body in sent}
        assert shares == {member.name for member in self.members}

    async def _until(self, condition: Callable[[], bool], problem: str) -> None:
        try:
            await until(condition, SETTLE_LIMIT_S)
        except TimeoutError:
            owners = {queue: sorted(who) for queue, who in sorted(self._record.owners(WINDOW_S).items())}
            raise AssertionError(f"{problem}; owners: {owners}; missing: {self.missing()[:5]}") from None


def test_java_go_and_native_members_share_queues(namesrv: str, go_program: Path | None) -> None:
    asyncio.run(come_and_go(namesrv, go_program))


async def come_and_go(namesrv: str, go_program: Path | None) -> None:
    record = Record()
    place = (namesrv, GROUP, TOPIC, record)
    one, two = Native("native-1", *place), Native("native-2", *place)
    java = java_member(*place)
    go = go_member(go_program, *place) if go_program else Native("native-for-go", *place)
    async with orbitmq.connect(namesrv, timeout=10) as mq:
        await mq.admin.create_topic(TOPIC, queues=QUEUES)
        await until(lambda: _has_route(mq))
        group = Group(mq, record)
        try:
            for member in (one, java, go, two):
                await group.join(member)
                await group.steady()
            await group.leave(java)
            await group.steady()
            await group.leave(go, killed=True)
            await group.steady()
            await group.leave(two)
            await group.steady()
        finally:
            for member in (two, go, java, one):
                await member.aclose()
    moving = {body: count for body, count in record.counts.items() if body.startswith("moving")}
    twice = sum(count - 1 for count in moving.values())
    print(f"{group.moving_sent} sent while members moved, {twice} of them delivered again; {group.pauses_s}")
    assert len(moving) == group.moving_sent
    # Killing a member repeats what it had not saved yet: at most what was sent within its interval of 5 s.
    assert twice <= group.moving_sent // 4
    # Nothing older than that comes again either.
    assert max(_ages_s(record), default=0.0) <= SAVED_EVERY_S + max(group.pauses_s.values()) + 2.0


def _ages_s(record: Record) -> Iterator[float]:
    """How long ago a message had been delivered when it was delivered again."""
    last: dict[str, float] = {}
    for got in record.got:
        if got.body in last:
            yield got.at - last[got.body]
        last[got.body] = got.at


async def _has_route(mq: orbitmq.Client) -> bool:
    try:
        return len(list((await mq.admin.route(TOPIC)).read_queues())) == QUEUES
    except orbitmq.NotFound:
        return False
