"""Deleting a topic while its messages are still on their way."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from orbitmq.store.disk import Disk
from orbitmq.store.flush import Done, Job
from orbitmq.store.inner_message import InnerMessage
from orbitmq.store.mark import RecoveryMark
from tests.support.stores import open_small, read_all


class SlowRunner:
    """Does its jobs when told to."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Job, Done]] = []

    def submit(self, job: Job, done: Done) -> None:
        self.jobs.append((job, done))

    def soon(self, call: Callable[[], None]) -> None:
        call()

    def work(self) -> None:
        while self.jobs:
            job, done = self.jobs.pop(0)
            job()
            done(None)

    def close(self) -> None:
        return


def message(topic: str, body: bytes) -> InnerMessage:
    return InnerMessage(topic, 0, body, b"UNIQ_KEY\x01" + body).index_properties()


def test_messages_not_yet_flushed_do_not_bring_a_deleted_queue_back(tmp_path: Path) -> None:
    runner = SlowRunner()
    store = open_small(tmp_path / "store", sync_flush=True, runner=runner)
    store.put(message("Gone", b"flushed"))
    runner.work()
    store.put(message("Gone", b"waiting"))
    store.put(message("Stays", b"kept"))
    store.delete_topic("Gone")
    runner.work()
    store.tick()
    runner.work()
    assert not os.path.exists(tmp_path / "store" / "consumequeue" / "Gone")
    store.close()
    again = open_small(tmp_path / "store")
    found = read_all(again)
    again.close()
    assert {place: [m.body for m in messages] for place, messages in found.items()} == {
        ("Stays", 0): [b"kept"]
    }


def test_a_note_made_during_the_deletion_forgets_the_topic(tmp_path: Path) -> None:
    """Otherwise the next start would miss the topic's queues and read the whole log to find them."""
    runner = SlowRunner()
    store = open_small(tmp_path / "store", runner=runner)
    store.put(message("Gone", b"1"))
    store.put(message("Stays", b"2"))
    for _ in range(200):  # the clock goes on with every look, until the queues are due to be synced
        store.tick()
    assert runner.jobs
    store.delete_topic("Gone")
    runner.work()
    ends = RecoveryMark.load(Disk(), str(tmp_path / "store" / "recovery.json")).queue_ends
    assert ends == {"Stays": {0: 1}}
    store.close()
    again = open_small(tmp_path / "store")
    assert again.topics() == ["Stays"]
    again.close()
