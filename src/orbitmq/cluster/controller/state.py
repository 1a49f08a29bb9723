"""What a controller must never forget about a broker group: replicas, master, epoch, in-sync set."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

FORMAT: Final = 1


class StateDamaged(Exception):
    """What an engine gave back is not the state of a group."""


class Replica(msgspec.Struct, frozen=True, rename="camel"):
    """One broker process of a group, known by the token of its store directory."""

    token: str
    address: str
    ha_address: str


class GroupState(msgspec.Struct, frozen=True, rename="camel"):
    """One broker group. Every change makes a new one, with a greater version."""

    cluster: str
    broker: str
    replicas: dict[int, Replica]
    master: int
    """The one chosen last, whether it is alive or not."""
    master_run: str
    """The process it was chosen as: after a restart it may know less than it did, so it must be chosen anew."""
    epoch: int
    in_sync: tuple[int, ...]
    version: int
    next_number: int
    """Numbers are never used twice: an old in-sync set must not come to mean somebody else."""
    former: tuple[int, ...] = ()
    """The in-sync set before the last election: it holds again when the elected one could not even begin."""
    format: int = FORMAT

    def number_of(self, token: str) -> int | None:
        return next((number for number, replica in self.replicas.items() if replica.token == token), None)


class Stored(NamedTuple):
    """A state and the revision under which its engine keeps it."""

    state: GroupState
    revision: int


_decoder: Final = msgspec.json.Decoder(GroupState)


def encode_state(state: GroupState) -> bytes:
    return msgspec.json.encode(state)


def decode_state(key: str, data: bytes) -> GroupState:
    """The state, if it is one; a controller that guesses could make two masters."""
    try:
        state = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise StateDamaged(f"the stored state of broker group {key!r} cannot be read: {error}") from error
    why = _flaw(key, state)
    if why:
        raise StateDamaged(f"the stored state of broker group {key!r} makes no sense: {why}")
    return state


def _flaw(key: str, state: GroupState) -> str:
    if state.format != FORMAT:
        return f"it has format {state.format}, this version knows {FORMAT}"
    if state.broker != key:
        return f"it is that of {state.broker!r}"
    if state.master not in state.in_sync:
        return f"its master {state.master} is not in its in-sync set {list(state.in_sync)}"
    strange = {*state.in_sync, *state.former} - state.replicas.keys()
    if strange:
        return f"its in-sync set has {sorted(strange)}, which are not among its replicas"
    if state.epoch < 1 or state.next_number <= max(state.replicas):
        return f"epoch {state.epoch}, next number {state.next_number}"
    return ""
