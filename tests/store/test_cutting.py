"""The end of a store is cut off: what was before stays whole, what comes after follows without a gap."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq.store import recovery
from orbitmq.store.cutting import cut_store
from orbitmq.store.disk import Disk
from orbitmq.store.errors import StoreError
from orbitmq.store.flush_note import FlushNote
from orbitmq.store.message_store import MessageStore
from tests.support.stores import (
    T0,
    Clock,
    Queues,
    fill,
    make_clean,
    make_crashed,
    open_small,
    read_all,
    small_settings,
    told,
)

LATER = T0 + 10_000_000


def whole(store: MessageStore) -> Queues:
    return read_all(store)


def before(queues: Queues, cut: int) -> Queues:
    kept = {key: [m for m in messages if m.physical_offset < cut] for key, messages in queues.items()}
    return {key: messages for key, messages in kept.items() if messages}


def borders(queues: Queues) -> list[int]:
    return sorted(m.physical_offset for messages in queues.values() for m in messages)


@pytest.mark.parametrize("make", [make_clean, make_crashed])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_what_was_before_the_cut_stays_and_nothing_else(tmp_path: Path, make, share: float) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "store")
    with closing(open_small(tmp_path / "store", clock=Clock(LATER))) as store:
        queues = whole(store)
    places = borders(queues)
    cut = places[int(share * len(places))]
    cut_store(Disk(), small_settings(tmp_path / "store"), cut)
    with told() as lines, closing(open_small(tmp_path / "store", clock=Clock(LATER * 2))) as store:
        assert store.log.position == cut
        kept = {key: messages for key, messages in whole(store).items() if messages}
        assert kept == before(queues, cut)
        fill(store, 50, seed=9)
        for messages in whole(store).values():
            assert [m.queue_offset for m in messages] == list(range(len(messages)))
    assert not [line for line in lines if "damage" in line]


@settings(max_examples=25, deadline=None)
@given(share=st.floats(0, 1), again=st.floats(0, 1), crashed=st.booleans())
def test_cutting_again_and_appending_in_between(
    tmp_path_factory: pytest.TempPathFactory, share: float, again: float, crashed: bool
) -> None:
    root = tmp_path_factory.mktemp("cut") / "store"
    (make_crashed if crashed else make_clean)(root, 60)
    for round_number, part in enumerate((share, again)):
        with closing(open_small(root, clock=Clock(LATER * (round_number + 1)))) as store:
            queues = whole(store)
            places = [*borders(queues), store.log.position]
        cut = places[min(len(places) - 1, int(part * len(places)))]
        cut_store(Disk(), small_settings(root), cut)
        with closing(open_small(root, clock=Clock(LATER * (round_number + 1) + 5_000_000))) as store:
            kept = {key: messages for key, messages in whole(store).items() if messages}
            assert kept == before(queues, cut)
            fill(store, 20, seed=round_number + 5)


def test_dying_after_the_notes_and_before_the_files_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is longer than the notes say: it is read to its end, as after any crash."""
    monkeypatch.setattr(recovery, "RECHECK_BYTES", 10_000)
    root = tmp_path / "store"
    make_crashed(root)
    with closing(open_small(root, clock=Clock(LATER))) as store:
        queues = whole(store)
        end = store.log.position

    class Died(Exception):
        pass

    def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr("orbitmq.store.segment.SegmentSeries.truncate_from", die)
        with pytest.raises(Died):
            cut_store(Disk(), small_settings(root), borders(queues)[40])
    with told() as lines, closing(open_small(root, clock=Clock(LATER * 2))) as store:
        assert store.log.position == end
        assert whole(store) == queues
    assert not [line for line in lines if "damage" in line]


def test_the_note_about_the_device_does_not_promise_what_was_cut(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make_crashed(root)
    with closing(open_small(root, clock=Clock(LATER))) as store:
        cut = borders(whole(store))[10]
    cut_store(Disk(), small_settings(root), cut)
    noted = FlushNote(Disk(), str(root)).load()
    assert noted is not None and noted.offset == cut


def test_a_cut_before_the_first_file_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make_clean(root)
    first = sorted((root / "commitlog").iterdir())[0]
    first.unlink()
    with pytest.raises(StoreError, match="empty"):
        cut_store(Disk(), small_settings(root), 100)
