"""Where the state of broker groups is kept: by compare-and-swap, so that nothing is written over unseen."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from orbitmq.cluster.controller.state import GroupState, Stored


class EngineFailed(Exception):
    """The engine did not do it, or nobody knows whether it did; the text says what to look at."""


class Hold(NamedTuple):
    """What came of the wish to be the active controller."""

    active: bool
    until_ms: float
    """By the boot clock: how long nobody else can be, counted from before the question was sent."""
    address: str
    """Of the active one; empty when there is none."""


class StateEngine(Protocol):
    name: str
    """For people: what kind of engine, and where."""

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Gives leadership back, if there is any, so that the next one need not wait."""

    async def hold(self, address: str) -> Hold:
        """Tries to become or to stay the active controller, the one at `address`."""

    async def load_all(self) -> dict[str, Stored]: ...

    async def load(self, key: str) -> Stored | None: ...

    async def swap(self, key: str, state: GroupState, expected: int | None) -> int | None:
        """Stores the state if the key still has that revision (None: does not exist); None on conflict.

        When it returns a revision, the state survives the death of this process and, as far as the engine can, of the
        machine.
        """
