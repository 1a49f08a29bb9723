"""A broker that becomes master of a group whose log ends in the middle of a commit, with everything real around it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orbitmq.broker.transaction import room
from orbitmq.store.cutting import cut_store
from tests.broker.transaction.producer import COMMIT, Producer
from tests.broker.transaction.world import record_end
from tests.cluster.test_controlled_pair import TOPIC, address_of, cluster, make_topic, read, until
from tests.support.send_sides import HastyDisk

IDS = [f"{number:032}" for number in range(4)]


def test_a_new_master_completes_a_commit_before_it_takes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The timer would complete it as well, half a second too late.
    monkeypatch.setattr(room, "TICK_S", 3600)

    async def story() -> None:
        async with cluster(tmp_path, brokerRole="ASYNC_MASTER") as group:
            master = await group.add("a")
            await until(group.master, "it is master")
            await make_topic(address_of(master), TOPIC)
            broker = master.broker
            assert broker is not None
            store = broker.store
            async with Producer(address_of(master)) as producer:
                place = await producer.prepare_batch(TOPIC, IDS)
                cut_at = store.log.position
                assert (await producer.end(place, COMMIT, IDS[0])).code == 0
            for _ in range(2):
                cut_at = record_end(store, cut_at)
            await master.stop()
            cut_store(HastyDisk(), store.settings, cut_at)
            for saved in tmp_path.rglob("consumerOffset.json*"):
                saved.unlink()  # of before the commit, then there was none
            again = await group.add("a")
            await until(group.master, "it is master again")
            assert await read(address_of(again)) == [msg_id.encode() for msg_id in IDS]

    asyncio.run(story())
