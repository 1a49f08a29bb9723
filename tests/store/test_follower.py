"""A log taken over in pieces: only whole records are written, and shown only as far as the gate is open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orbitmq.store.errors import StoreError
from orbitmq.store.follower import LogFollower, OutOfSequence
from orbitmq.store.message_store import MessageStore
from tests.support.stores import fill, open_small, read_all


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    """Over several log files, so that blanks are among what is taken over."""
    store = open_small(tmp_path_factory.mktemp("master"))
    fill(store, 250)
    assert len(store.log.series.bases) > 3
    yield store
    store.close()


def log_of(store: MessageStore, start: int = 0, end: int | None = None) -> bytes:
    series = store.log.series
    end = store.log.position if end is None else end
    parts = []
    while start < end:
        piece = min(end, start - start % series.segment_bytes + series.segment_bytes)
        parts.append(store.log.read(start, piece - start))
        start = piece
    return b"".join(parts)


def borders_of(store: MessageStore) -> list[int]:
    """Where a record ends, or a file does."""
    ends = [
        unit[0] + unit[1]
        for queue in store.all_queues()
        for at in range(queue.min_offset, queue.max_offset)
        if (unit := queue.unit(at)) is not None
    ]
    return sorted({0, *ends, *store.log.series.bases})


def feed(follower: LogFollower, data: bytes, size: int) -> None:
    for at in range(0, len(data), size):
        follower.take(at, data[at : at + size])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.sampled_from((7, 100, 1000, 4096, 40_000)), cut=st.integers(0, 10_000))
def test_in_whatever_pieces_it_comes_the_log_ends_with_a_whole_record(
    tmp_path_factory: pytest.TempPathFactory, master: MessageStore, size: int, cut: int
) -> None:
    whole = log_of(master)
    cut = len(whole) - cut
    root = tmp_path_factory.mktemp("slave")
    slave = open_small(root)
    follower = LogFollower(slave)
    feed(follower, whole[:cut], size)
    border = max(each for each in borders_of(master) if each <= cut)
    assert follower.position == cut
    assert slave.log.position == follower.confirmed == border
    assert log_of(slave) == whole[:border]
    slave.close()

    # The rest is asked for again, and the next start finds no half of a record.
    slave = open_small(root)
    follower = LogFollower(slave)
    assert follower.begin() == border
    follower.take(border, whole[border:])
    assert log_of(slave) == whole
    assert read_all(slave) == read_all(master)
    slave.close()


def test_a_new_connection_begins_with_the_record_that_was_not_whole(
    tmp_path: Path, master: MessageStore
) -> None:
    slave = open_small(tmp_path)
    follower = LogFollower(slave)
    first = borders_of(master)[1]
    follower.take(0, log_of(master, 0, first + 20))
    assert follower.position == first + 20
    assert follower.begin() == follower.position == first
    with pytest.raises(OutOfSequence):
        follower.take(first + 20, b"more")
    slave.close()


def test_nothing_is_shown_beyond_the_gate(tmp_path: Path, master: MessageStore) -> None:
    slave = open_small(tmp_path)
    follower = LogFollower(slave, gated=True)
    whole = log_of(master)
    feed(follower, whole, 4096)
    assert slave.log.position == len(whole)
    assert read_all(slave) == {}
    shown = 0
    for offset in range(0, len(whole), 997):
        follower.open_to(offset)
        ends = [
            unit[0] + unit[1] for queue in slave.all_queues() if (unit := queue.unit(queue.max_offset - 1))
        ]
        assert max(ends, default=0) == max(
            (each for each in borders_of(master) if each <= offset and each not in master.log.series.bases),
            default=0,
        )
        now = sum(queue.max_offset for queue in slave.all_queues())
        assert now >= shown
        shown = now
    follower.open_to(10)  # never back
    follower.open_to(len(whole))
    assert read_all(slave) == read_all(master)
    slave.close()


def test_what_is_not_shown_yet_is_on_the_device_all_the_same(tmp_path: Path, master: MessageStore) -> None:
    """Or the master, which waits for that before it opens the gate, would wait for ever."""
    slave = open_small(tmp_path, sync_flush=True)
    follower = LogFollower(slave, gated=True)
    follower.take(0, log_of(master))
    assert follower.confirmed == slave.log.position == master.log.position
    assert read_all(slave) == {}
    slave.close()


def test_what_is_no_log_is_not_written(tmp_path: Path, master: MessageStore) -> None:
    slave = open_small(tmp_path)
    follower = LogFollower(slave)
    first = borders_of(master)[1]
    for garbage in (bytes(100), b"\xff" * 100, b"\0\0\0\x10garbage!"):
        with pytest.raises(StoreError, match=rf"damaged at {first}.*orbitmq store verify"):
            follower.take(follower.begin(), log_of(master, follower.begin(), first) + garbage)
        assert log_of(slave) == log_of(master, 0, first)
    slave.close()
