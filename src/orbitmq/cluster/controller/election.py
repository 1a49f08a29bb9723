"""Who of a group becomes master when it has none. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orbitmq.cluster.controller.presence import Presence
from orbitmq.cluster.controller.state import GroupState


@dataclass(frozen=True, slots=True)
class Choice:
    """The one to become master, or why there is none yet, in words for a person."""

    number: int | None
    why_nobody: str = ""


@dataclass(frozen=True, slots=True)
class Vacancy:
    """A group without a master: since when, and what was wished for."""

    since_ms: int
    wished: int | None = None
    unclean: bool = False


def choose(state: GroupState, presence: Presence, vacancy: Vacancy, now_ms: int, lease_ms: int) -> Choice:
    """Any living member of the in-sync set has every acknowledged message; the one with the most is best.

    Members that may be alive and have not spoken since get one lease to do so. A master that resigned comes last: it
    did so for a reason.
    """
    waited = now_ms - vacancy.since_ms >= lease_ms
    missing = [n for n in state.in_sync if presence.undecided(n, vacancy.since_ms, now_ms)]
    if missing and not waited:
        return Choice(None, f"waiting for {_names(missing)} of the in-sync set to be heard")
    alive = [n for n in state.in_sync if presence.alive(n, now_ms)]
    fresh = [n for n in alive if not resigned(state, presence, n)]
    if not fresh and alive and not waited:
        return Choice(None, f"{_names(alive)} resigned, and nobody else of the in-sync set is alive yet")
    candidates = fresh or alive
    if not candidates and vacancy.unclean and waited:
        candidates = [n for n in state.replicas if presence.alive(n, now_ms)]
    if not candidates:
        return Choice(None, f"nobody of the in-sync set ({_names(state.in_sync)}) is alive")
    if vacancy.wished in candidates:
        return Choice(vacancy.wished)
    live = presence.live
    return Choice(max(candidates, key=lambda n: (live[n].epoch, live[n].end, -n)))


def resigned(state: GroupState, presence: Presence, number: int) -> bool:
    """Whether this is the master, and it gave this very epoch back."""
    live = presence.live.get(number)
    return live is not None and number == state.master and live.resigned >= state.epoch


def _names(numbers: Iterable[int]) -> str:
    return "replica " + ", ".join(str(number) for number in sorted(numbers))
