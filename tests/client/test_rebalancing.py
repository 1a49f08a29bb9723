"""Which queues are wanted, from answers that may be missing or doubtful."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from orbitmq.client.cluster import Cluster
from orbitmq.client.core.allocation import AVERAGE
from orbitmq.client.rebalancing import Rebalancer
from orbitmq.wire import bodies
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.fastjson import MessageQueue
from tests.support.consuming import run
from tests.support.fake_servers import FakeCluster, fake_cluster


class Assigned:
    """Takes at once what it is told."""

    def __init__(self) -> None:
        self.holdings: dict[MessageQueue, object] = {}
        self.awaited: set[MessageQueue] = set()

    def apply(
        self, wanted: Collection[MessageQueue], noticed: float, *, from_others: Collection[MessageQueue] = ()
    ) -> None:
        self.holdings = dict.fromkeys(wanted, object())
        self.awaited = set(from_others)

    @property
    def owned(self) -> list[tuple[str, int]]:
        return sorted((queue.broker_name, queue.queue_id) for queue in self.holdings)


class Members:
    """The lists of two brokers, changed by the test; None does not answer."""

    def __init__(self, *lists: list[str] | None) -> None:
        self.lists = list(lists)

    def answer(self, number: int) -> Any:
        def answer(conn: Any, command: Command) -> Command:
            known = self.lists[number]
            if known is None:
                return command.reply(ResponseCode.SYSTEM_ERROR, remark="no consumer for this group")
            return command.reply(body=bodies.encode(bodies.ConsumerIdList(consumer_id_list=known)))

        return {RequestCode.GET_CONSUMER_LIST_BY_GROUP: answer}


def rebalancer(cluster: Cluster, assigned: Assigned, introduced: list[int]) -> Rebalancer:
    async def introduce() -> None:
        introduced.append(1)

    return Rebalancer(
        cluster,
        "g",
        "me",
        ["TopicA"],
        assigned,  # type: ignore[arg-type]
        strategy=AVERAGE,
        broadcast=False,
        introduce=introduce,
    )


def play(members: Members, story: Any) -> None:
    async def scenario() -> None:
        async with (
            fake_cluster(members.answer(0), members.answer(1), queues=2) as fake,
            Cluster(fake.namesrv.addr, timeout_s=1) as cluster,
        ):
            assigned, introduced = Assigned(), list[int]()
            await story(fake, assigned, rebalancer(cluster, assigned, introduced), introduced)

    run(scenario)


def test_everybody_that_any_broker_knows_counts() -> None:
    members = Members(["me"], ["me", "zoe"])

    async def story(
        fake: FakeCluster, assigned: Assigned, deciding: Rebalancer, introduced: list[int]
    ) -> None:
        assert await deciding.once()
        assert assigned.owned == [("broker-a", 0), ("broker-a", 1)]
        assert deciding.members == ["me", "zoe"]

    play(members, story)


def test_queues_of_a_living_member_are_waited_for_and_those_of_a_gone_one_are_not() -> None:
    members = Members(["me", "zoe"], ["me", "zoe"])

    async def story(
        fake: FakeCluster, assigned: Assigned, deciding: Rebalancer, introduced: list[int]
    ) -> None:
        await deciding.once()
        # A member that joins gets queues that zoe, who is still there, had alone before.
        assert len(assigned.awaited) == 2
        members.lists = [["me"], ["me"]]
        await deciding.once()
        assert len(assigned.owned) == 4 and assigned.awaited == set()
        members.lists = [["anna", "me"], ["anna", "me"]]
        await deciding.once()
        assert assigned.owned == [("broker-b", 0), ("broker-b", 1)] and assigned.awaited == set()

    play(members, story)


def test_no_answer_and_a_list_without_this_member_move_nothing() -> None:
    members = Members(["me"], ["me"])

    async def story(
        fake: FakeCluster, assigned: Assigned, deciding: Rebalancer, introduced: list[int]
    ) -> None:
        await deciding.once()
        assert len(assigned.owned) == 4 and introduced == []
        for lists in ([None, None], [["zoe"], None]):
            members.lists = lists
            assert not await deciding.once(), "asked again soon"
            assert len(assigned.owned) == 4
        assert introduced == [1, 1]

    play(members, story)


def test_members_missing_after_a_broker_was_away_are_given_time_to_come_back(monkeypatch: Any) -> None:
    members = Members(["me", "zoe"], ["me", "zoe"])

    async def story(
        fake: FakeCluster, assigned: Assigned, deciding: Rebalancer, introduced: list[int]
    ) -> None:
        await deciding.once()
        members.lists = [["me"], ["me"]]
        deciding.doubt()
        assert not await deciding.once()
        assert len(assigned.owned) == 2
        monkeypatch.setattr(deciding, "_doubt_until", 0.0)
        assert await deciding.once()
        assert len(assigned.owned) == 4

    play(members, story)


def test_it_runs_again_when_woken() -> None:
    members = Members(["me"], ["me"])

    async def story(
        fake: FakeCluster, assigned: Assigned, deciding: Rebalancer, introduced: list[int]
    ) -> None:
        task = asyncio.create_task(deciding.run())
        while len(assigned.owned) != 4:
            await asyncio.sleep(0.005)
        members.lists = [["me", "zoe"], ["me", "zoe"]]
        deciding.wake()
        while len(assigned.owned) != 2:
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    play(members, story)
