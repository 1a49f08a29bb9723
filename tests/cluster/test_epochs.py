"""Histories of epochs against a model in which every byte knows which mastership wrote it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.cluster.epochs import EpochHistory, common_end
from orbitmq.store.disk import Disk
from orbitmq.store.errors import StoreDamaged


@dataclass
class Replica:
    cells: list[tuple[int, int]] = field(default_factory=list)
    history: EpochHistory = field(default_factory=EpochHistory)


def really_common(a: Replica, b: Replica) -> int:
    pairs = zip(a.cells, b.cells, strict=False)
    return next((at for at, (x, y) in enumerate(pairs) if x != y), min(len(a.cells), len(b.cells)))


def told_common(a: Replica, b: Replica) -> int:
    return common_end(a.history, len(a.cells), b.history, len(b.cells))


REPLICAS = 4
which = st.integers(0, REPLICAS - 1)
few = st.integers(0, 4)
# (master, appended before and after the copies, [(slave, how much of the rest it gets)], (who loses its end, how much))
masterships = st.lists(
    st.tuples(which, few, few, st.lists(st.tuples(which, few), max_size=4), st.tuples(which, few)),
    max_size=12,
)


def follow(slave: Replica, master: Replica, count: int) -> None:
    point = told_common(slave, master)
    del slave.cells[point:]
    slave.history = master.history
    slave.cells += master.cells[point : point + count]


@given(masterships)
def test_two_logs_are_the_same_up_to_where_their_histories_say(
    plan: list[tuple[int, int, int, list[tuple[int, int]], tuple[int, int]]],
) -> None:
    replicas = [Replica() for _ in range(REPLICAS)]
    for epoch, (chosen, before, after, copies, (torn, lost)) in enumerate(plan, start=1):
        master = replicas[chosen]
        master.history = master.history.begin(epoch, len(master.cells))
        master.cells += [(epoch, at) for at in range(before)]
        for number, count in copies:
            if number != chosen:
                follow(replicas[number], master, count)
        master.cells += [(epoch, before + at) for at in range(after)]
        # A crash takes the end of a log, not the history that was saved before it.
        kept = max(0, len(replicas[torn].cells) - lost)
        del replicas[torn].cells[kept:]
        for a in replicas:
            for b in replicas:
                assert told_common(a, b) == really_common(a, b)


def test_what_was_there_before_the_first_epoch_counts_as_its_part() -> None:
    master = EpochHistory().begin(1, 1000)
    assert master.entries == ((1, 0),)
    assert common_end(master, 500, master, 1200) == 500
    assert common_end(EpochHistory().begin(2, 700), 700, master, 1200) == 0


def test_an_epoch_does_not_begin_twice() -> None:
    history = EpochHistory().begin(3, 0)
    for epoch in (2, 3):
        with pytest.raises(ValueError, match="epoch 3 has begun already"):
            history.begin(epoch, 10)
    assert history.begin(4, 10).last_epoch == 4


def test_an_epoch_without_a_byte_leaves_no_trace_in_the_next_one() -> None:
    history = EpochHistory(((1, 0), (2, 100)))
    assert history.begin(3, 100).entries == ((1, 0), (3, 100))
    assert history.cut(100).entries == ((1, 0),)
    assert history.cut(101) == history
    assert history.cut(0).last_epoch == 0


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 60), st.integers(0, 60))
def test_what_was_cleaned_away_need_not_be_remembered(starts: list[int], cleaned: int, end: int) -> None:
    entries = tuple((number, start) for number, start in enumerate((0, *sorted(starts)), start=1))
    history = EpochHistory(entries)
    short = history.forget_before(cleaned)
    assert [epoch for epoch, start in short.entries if start > cleaned] == [
        epoch for epoch, start in entries if start > cleaned
    ]
    if end > cleaned:
        assert common_end(short, end, history, end) == end
    assert sum(1 for _, start in short.entries if start <= cleaned) == 1


def test_a_history_is_on_the_disk_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "config" / "epochs.json"
    assert EpochHistory.load(Disk(), path).entries == ()
    history = EpochHistory(((1, 0), (4, 900)))
    history.save(Disk(), path)
    assert EpochHistory.load(Disk(), path) == history
    history.begin(5, 1000).save(Disk(), path)
    assert EpochHistory.load(Disk(), path).last_epoch == 5
    assert [each.name for each in path.parent.iterdir()] == ["epochs.json"]


@pytest.mark.parametrize(
    "text", ["", "{}", "[[1]]", "[[1,0],[1,5]]", "[[1,9],[2,5]]", '[["1",0]]', "[[true,0]]"]
)
def test_a_history_that_cannot_be_right_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "epochs.json"
    path.write_text(text)
    with pytest.raises(
        StoreDamaged, match=r"epochs\.json: the history of epochs cannot be read.*; empty this"
    ):
        EpochHistory.load(Disk(), path)
