"""Where the analytics write: a draft first, so that no reader ever sees half of a report."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def draft_of(out: Path) -> Iterator[Path]:
    """A directory to write to. What is in it when the block ends well replaces what has the same name in `out`.

    It is made at once: a place that cannot be written is an error before hours of reading, not after them. Other files
    in `out` stay, and when the block fails so does what an earlier run left.
    """
    new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    # Inside, since a directory beside `out` may be on another disk or not be ours to make.
    scratch = out / f".draft-{uuid.uuid4().hex[:8]}"
    draft, before = scratch / "new", scratch / "old"
    try:
        draft.mkdir(parents=True)
        before.mkdir()
        yield draft
        _exchange(draft, out, before)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if new:
            with suppress(OSError):  # it is not empty, as it should be
                out.rmdir()


def _exchange(draft: Path, out: Path, before: Path) -> None:
    moved: list[tuple[Path, Path]] = []
    try:
        for made in sorted(draft.iterdir()):
            place = out / made.name
            if os.path.lexists(place):
                moved.append((place, before / made.name))
                place.rename(before / made.name)
            moved.append((made, place))
            made.rename(place)
    except BaseException:
        for source, target in reversed(moved):
            with suppress(FileNotFoundError):
                target.rename(source)
        raise
