"""Where acknowledgements mean copies, readers see nothing that another master might not have."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

import pytest

from orbitmq.store.consume_queue import ConsumeQueue
from tests.support.stores import fill, open_small, read_all


def shown(store) -> int:  # type: ignore[no-untyped-def]
    return sum(len(messages) for messages in read_all(store).values())


@pytest.mark.parametrize("sync_flush", [False, True])
def test_messages_are_seen_when_the_copies_have_them(tmp_path: Path, sync_flush: bool) -> None:
    with closing(open_small(tmp_path / "store", sync_flush=sync_flush)) as store:
        fill(store, 10)
        assert shown(store) == 10
        store.copied(store.log.position)
        ends = []
        for number in range(5):
            fill(store, 1, seed=number + 2)
            ends.append(store.log.position)
        assert shown(store) == 10
        store.copied(ends[1])
        assert shown(store) == 12
        store.copied(ends[3] - 1)  # a slave may stand in the middle of a message
        assert shown(store) == 13
        assert store.dispatch_behind_bytes == ends[4] - ends[2]
        store.copied(ends[4])
        assert shown(store) == 15
        assert store.dispatch_behind_bytes == 0


def test_what_was_not_shown_is_found_by_the_next_start(tmp_path: Path) -> None:
    """Whoever opens the store decides anew what may be seen; nothing of the log is lost for it."""
    with closing(open_small(tmp_path / "store")) as store:
        store.copied(0)
        fill(store, 20)
        for _ in range(300):
            store.tick()  # queues, index and checkpoint are brought to the disk meanwhile
        assert shown(store) == 0
    with closing(open_small(tmp_path / "store")) as store:
        assert shown(store) == 20


def test_a_fault_among_those_who_wait_keeps_no_answer_back_and_shows_nothing_twice(tmp_path: Path) -> None:
    with closing(open_small(tmp_path / "store")) as store:
        fill(store, 10)
        store.copied(store.log.position)
        fill(store, 5, seed=2)
        released: list[int] = []

        def fails(queue: ConsumeQueue, alone: bool) -> None:
            queue.waiters = []
            raise RuntimeError("a fault in the broker")

        store.dispatcher.arrived = fails
        store.dispatcher.all_arrived = lambda: released.append(shown(store))
        for queue in store.all_queues():
            queue.waiters.append(object())
        for _ in range(5):
            with suppress(RuntimeError):
                store.copied(store.log.position)
        assert released, "what was collected for others has to go out"
        assert shown(store) == 15
        assert store.dispatch_behind_bytes == 0
