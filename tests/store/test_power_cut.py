"""The plug is pulled at any moment: under SYNC_FLUSH everything acknowledged is there afterwards, in its place."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from orbitmq.store.durability import Durable
from orbitmq.store.inner_message import InnerMessage
from orbitmq.store.message_store import MessageStore
from tests.store.test_deleting import SlowRunner
from tests.support.power_cut import VolatileDisk
from tests.support.stores import T0, Clock, open_small, read_all

SEEDS = int(os.environ.get("ORBITMQ_POWER_CUTS", "30"))
QUEUES = (("Alpha", 0), ("Alpha", 1), ("Beta", 0))


class World:
    """What was sent and what was acknowledged, by body."""

    def __init__(self) -> None:
        self.sent: dict[bytes, tuple[str, int]] = {}
        self.acked: dict[bytes, int] = {}

    def send(self, store: MessageStore, random: Random) -> None:
        """A read's worth of messages, acknowledged when they are on the device."""
        offsets: list[tuple[bytes, int]] = []
        for _ in range(random.choice((1, 1, 5, 20))):
            topic, queue_id = random.choice(QUEUES)
            body = b"%d " % len(self.sent) + random.randbytes(random.choice((1, 50, 2000)))
            self.sent[body] = (topic, queue_id)
            text = b"UNIQ_KEY\x01%032d" % len(self.sent)
            store.stage_inner(InnerMessage(topic, queue_id, body, text).index_properties())
            offsets.append((body, store.queue(topic, queue_id).next_offset - 1))
        end = store.commit_staged()

        def durable(outcome: Durable) -> None:
            if outcome is Durable.YES:
                self.acked.update(offsets)

        store.when_durable(end, durable)

    def check(self, store: MessageStore) -> None:
        found: dict[bytes, int] = {}
        for place, messages in read_all(store).items():
            assert [m.queue_offset for m in messages] == list(range(len(messages))), f"{place} has holes"
            for m in messages:
                assert self.sent.get(m.body) == place, f"{place} has a message that nobody sent there"
                assert m.body not in found, f"{place}: {m.body[:20]!r} is there twice"
                found[m.body] = m.queue_offset
                hits = store.query_keys(m.topic, m.msg_id, 0, 1 << 62, 64)
                assert m.physical_offset in hits, f"{m.body[:20]!r} is not found by its id"
        lost = [body[:20] for body, offset in self.acked.items() if found.get(body) != offset]
        assert not lost, f"acknowledged and lost, or moved: {lost[:5]} of {len(self.acked)}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_acknowledged_survives(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    world = World()
    clock = Clock(T0)
    root = tmp_path / "0"
    # Each life begins with what the cut of the life before has left.
    for life in range(3):
        disk, runner = VolatileDisk(), SlowRunner()
        if life:
            adopt(disk, root)
        store = open_small(root, disk=disk, clock=clock, sync_flush=True, runner=runner)
        world.check(store)
        here = {m.body for messages in read_all(store).values() for m in messages}
        world.sent = {body: place for body, place in world.sent.items() if body in here}
        for _ in range(random.randrange(60)):
            world.send(store, random)
            if random.random() < 0.3:
                clock.now_ms += 40
                store.tick()
            if runner.jobs and random.random() < 0.5:
                job, done = runner.jobs.pop(0)
                job()
                done(None)
        left = tmp_path / str(life + 1)
        disk.cut(root, left, random)
        left.mkdir(exist_ok=True)
        store._release()
        root = left
    with closing(open_small(root, clock=clock)) as store:
        world.check(store)


@pytest.mark.parametrize("seed", range(10))
def test_a_queue_whose_log_was_just_cleaned_gives_no_offset_again(tmp_path: Path, seed: int) -> None:
    """Only the queue's file knows how far it was: it is on the device before the log's files go."""
    random = Random(seed)
    disk = VolatileDisk()
    long_after = Clock(int(time.time() * 1000) + 100 * 3_600_000)  # everything has expired
    store = open_small(tmp_path / "before", disk=disk, clock=long_after, sync_flush=True)
    world = World()
    while len(store.log.series.bases) < 4:
        world.send(store, random)
    for _ in range(40):  # one queue goes on alone, so that the others have nothing in the files that stay
        store.put(InnerMessage("Gamma", 0, bytes(2000), b""))
    ends = {place: store.queue(*place).next_offset for place in QUEUES}
    assert store.cleaner.run(manual=True).log_files >= 4
    disk.cut(tmp_path / "before", tmp_path / "after", random)
    store._release()
    with closing(open_small(tmp_path / "after", clock=long_after)) as store:
        assert {place: store.queue(*place).next_offset for place in QUEUES} == ends


def adopt(disk: VolatileDisk, root: Path) -> None:
    """What lies there has survived a power cut: it is on the device."""
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        fd = disk.open_rw(path)
        disk.fdatasync(fd)
        disk.close(fd)
