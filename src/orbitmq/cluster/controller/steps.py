"""What the machine wants done next: send an answer, refuse, or store a state before anything else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orbitmq.cluster.controller.state import GroupState
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.controller_bodies import ROLES, GroupAnswer, GroupView, HandOver, ReplicaHeartbeat

MAX_NAME_CHARS: Final = 255


@dataclass(frozen=True, slots=True)
class Answer:
    body: GroupAnswer | GroupView


@dataclass(frozen=True, slots=True)
class Refusal:
    """`text` names the cause and what to do."""

    code: ResponseCode
    text: str
    body: GroupAnswer | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """Compare and swap this, tell the machine, and only then go on.

    `answer_to`: the replica that is then told how things are. None: ask the machine the same question again.
    """

    key: str
    state: GroupState
    expected: int | None
    """The revision it must still have; None: there must be none yet."""
    why: str
    answer_to: int | None = None


Step = Answer | Refusal | Store


def misconfigured(text: str) -> Refusal:
    return Refusal(ResponseCode.MISCONFIGURED, text)


def unknown_group(broker: str) -> Refusal:
    return Refusal(
        ResponseCode.QUERY_NOT_FOUND,
        f"no broker group {broker!r} is known here; check the name: it is a broker's brokerName",
    )


def check_beat(beat: ReplicaHeartbeat) -> Refusal | None:
    """What no broker of ours would send."""
    if beat.role not in ROLES:
        return _bad(f"role {beat.role[:40]!r}: expected one of {', '.join(ROLES)}")
    for name in ("cluster", "broker", "token", "run", "address", "ha_address"):
        text = getattr(beat, name)
        if not text or len(text) > MAX_NAME_CHARS:
            return _bad(f"{name} has {len(text)} characters: expected 1 to {MAX_NAME_CHARS}")
    if beat.epoch < 0 or beat.end < 0:
        return _bad(f"epoch {beat.epoch}, end {beat.end}: neither can be below 0")
    return None


def check_wish(wish: HandOver, state: GroupState) -> Refusal | None:
    if wish.to is not None and wish.to not in state.replicas:
        known = ", ".join(map(str, sorted(state.replicas)))
        return Refusal(
            ResponseCode.QUERY_NOT_FOUND, f"{wish.broker} has no replica {wish.to}; it has {known}"
        )
    return None


def _bad(text: str) -> Refusal:
    return Refusal(ResponseCode.INVALID_PARAMETER, f"not a heartbeat of a replica: {text}")
