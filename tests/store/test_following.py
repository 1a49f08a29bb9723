"""A slave's store: what it takes over, what it shows, and what a crash leaves of that."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from orbitmq.store.follower import LogFollower
from orbitmq.store.inner_message import InnerMessage
from orbitmq.store.message_store import MessageStore
from tests.support.stores import Clock, fill, open_small, read_all

LATER = Clock().now_ms + 10_000_000


def follow(follower: LogFollower, master: MessageStore, block: int = 700) -> None:
    while follower.position < master.log.position:
        start = follower.position
        file_end = start - start % master.log.series.segment_bytes + master.log.series.segment_bytes
        end = min(start + block, file_end, master.log.position)
        follower.take(start, master.log.read(start, end - start))


def bodies(store: MessageStore) -> dict[tuple[str, int], list[bytes]]:
    return {key: [m.body for m in messages] for key, messages in read_all(store).items() if messages}


@pytest.mark.parametrize("sync_flush", [False, True])
def test_what_the_gate_held_back_is_in_the_queues_of_the_next_master(
    tmp_path: Path, sync_flush: bool
) -> None:
    """The slave dies long after its last checkpoint: the records that were not shown then must not be missed."""
    with closing(open_small(tmp_path / "master")) as master:
        fill(master, 40)
        shown = master.log.position
        fill(master, 60, seed=2)
        with closing(open_small(tmp_path / "slave", sync_flush=sync_flush)) as slave:
            follower = LogFollower(slave, gated=True)
            follow(follower, master)
            follower.open_to(shown)
            for _ in range(300):
                slave.tick()
            assert sum(map(len, bodies(slave).values())) == 40
            shutil.copytree(tmp_path / "slave", tmp_path / "died")
        with closing(open_small(tmp_path / "died", clock=Clock(LATER))) as promoted:
            assert bodies(promoted) == bodies(master)
        with closing(open_small(tmp_path / "slave", clock=Clock(LATER))) as promoted:
            assert bodies(promoted) == bodies(master)


def test_a_topic_that_was_deleted_and_made_again_begins_at_0_here_too(tmp_path: Path) -> None:
    def send(store: MessageStore, queue_id: int, body: bytes) -> None:
        store.put(InnerMessage("Again", queue_id, body, b"UNIQ_KEY\x01" + body).index_properties())

    with (
        closing(open_small(tmp_path / "master")) as master,
        closing(open_small(tmp_path / "slave")) as slave,
    ):
        follower = LogFollower(slave)
        for number in range(5):
            send(master, number % 2, b"old %d" % number)
        follow(follower, master)
        master.delete_topic("Again")
        for number in range(3):
            send(master, number % 2, b"new %d" % number)
        follow(follower, master, block=1 << 20)
        assert (
            bodies(slave) == bodies(master) == {("Again", 0): [b"new 0", b"new 2"], ("Again", 1): [b"new 1"]}
        )
        shutil.copytree(tmp_path / "slave", tmp_path / "died")
    with closing(open_small(tmp_path / "died", clock=Clock(LATER))) as store:
        assert bodies(store) == {("Again", 0): [b"new 0", b"new 2"], ("Again", 1): [b"new 1"]}
