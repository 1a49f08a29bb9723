"""Filling the memory: until the system takes back what it gives, and again what was freed since."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import memory_fill
from bench.memory_fill import MemoryFill

STEP = 1 << 20


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A made-up machine: every step takes a page of ten, as long as more than two are free."""
    state = {"free": 10, "steps": 0}

    def step(self: MemoryFill, fd: int) -> None:
        state["steps"] += 1
        state["free"] = max(2, state["free"] - 1)

    monkeypatch.setattr(MemoryFill, "_read_step", step)
    monkeypatch.setattr(memory_fill, "free_bytes", lambda: state["free"])
    return state


def test_it_ends_when_nothing_more_is_free(machine: dict[str, int], tmp_path: Path) -> None:
    MemoryFill(tmp_path).fill()
    assert machine["free"] == 2
    assert machine["steps"] == 8 + memory_fill._STEPS_WITHOUT_LESS


def test_what_was_freed_is_filled_again(machine: dict[str, int], tmp_path: Path) -> None:
    fill = MemoryFill(tmp_path)
    fill.fill()
    machine.update(free=6, steps=0)
    fill.fill()
    assert machine == {"free": 2, "steps": 4 + memory_fill._STEPS_WITHOUT_LESS}


def test_the_holes_take_no_room_on_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory_fill, "_STEP_BYTES", STEP)
    monkeypatch.setattr(memory_fill, "free_bytes", lambda: 5)
    MemoryFill(tmp_path).fill()
    holes = (tmp_path / "holes").stat()
    assert holes.st_size == memory_fill._FILE_BYTES
    assert holes.st_blocks * 512 < STEP
