"""The note of how far the log is flushed, at its edges."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbitmq.store.disk import Disk
from orbitmq.store.flush_note import FILE_NAME, Flushed, FlushNote


def test_a_flush_that_ends_after_closing_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    note = FlushNote(Disk(), str(tmp_path))
    note.open(100, 7)
    note.set(200)
    note.close()
    note.set(150)
    assert FlushNote(Disk(), str(tmp_path)).load() == Flushed(200, 7, 7)
    assert not caplog.records


def test_a_note_that_cannot_be_believed_is_none(tmp_path: Path) -> None:
    note = FlushNote(Disk(), str(tmp_path))
    assert note.load() is None
    note.open(100, 7)
    note.close()
    path = tmp_path / FILE_NAME
    data = path.read_bytes()
    path.write_bytes(data[:3] + b"\xff" + data[4:])
    assert note.load() is None
    path.write_bytes(data[:10])
    assert note.load() is None
