"""Who may join: the first replica of a new group, another one of a known group, a new run of a known one. Pure.

Everything that is set up so wrongly that it would cost messages later is refused here, with the cause and the fix.
"""

from __future__ import annotations

from typing import Final

import msgspec

from orbitmq.cluster.controller.presence import Presence
from orbitmq.cluster.controller.state import GroupState, Replica
from orbitmq.cluster.controller.steps import Refusal, Step, Store, misconfigured
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.controller_bodies import LEAVING, STARTING, ReplicaHeartbeat

MAX_GROUPS: Final = 10_000
MAX_REPLICAS: Final = 64
FORGET_AFTER_LEASES: Final = 30


class Newcomers:
    def __init__(self, unclean: bool, max_clock_gap_ms: int, lease_ms: int) -> None:
        self._unclean = unclean
        self._max_clock_gap_ms = max_clock_gap_ms
        self._forget_after_ms = FORGET_AFTER_LEASES * lease_ms

    def first_of_group(self, beat: ReplicaHeartbeat, wall_ms: int, groups: int, home: str | None) -> Step:
        """Becomes master of epoch 1: nobody else can have messages of this group."""
        refusal = self._refused(beat, wall_ms, home)
        if refusal is not None:
            return refusal
        if groups >= MAX_GROUPS:
            return Refusal(
                ResponseCode.SYSTEM_BUSY, f"{groups} broker groups are known, the most one controller takes"
            )
        if beat.epoch > 0 and not self._unclean:
            return misconfigured(
                f"this store was part of broker group {beat.broker!r} up to epoch {beat.epoch}, and this controller "
                "knows no such group: controllerAddr names the wrong one, or the controller's data is gone. If it is "
                "gone, start the replica with the most messages first, with a controller that was given --unclean"
            )
        state = GroupState(
            cluster=beat.cluster,
            broker=beat.broker,
            replicas={1: _replica(beat)},
            master=1,
            master_run=beat.run,
            epoch=beat.epoch + 1,
            in_sync=(1,),
            version=1,
            next_number=2,
        )
        return Store(beat.broker, state, None, f"new broker group, replica 1 at {beat.address} is its master")

    def join(
        self,
        beat: ReplicaHeartbeat,
        wall_ms: int,
        now_ms: int,
        state: GroupState,
        revision: int,
        presence: Presence,
        home: str | None,
    ) -> Step:
        """Gets the next number. It counts for nothing before the master says that it has caught up."""
        refusal = self._refused(beat, wall_ms, home)
        if refusal is not None:
            return refusal
        if (beat.end > 0 or beat.epoch > 0) and not self._unclean:
            return misconfigured(
                f"this store holds messages (up to log offset {beat.end}, epoch {beat.epoch}) and was never part of "
                f"broker group {beat.broker!r}, whose log it would have to take instead: start it with an empty "
                "directory, or give it another brokerName"
            )
        gone = self._replaced(beat, state, presence, now_ms)
        if len(state.replicas) - len(gone) >= MAX_REPLICAS:
            return Refusal(
                ResponseCode.SYSTEM_BUSY,
                f"{beat.broker} has {len(state.replicas)} replicas, the most one group takes; those that are out of "
                f"sync and silent for {self._forget_after_ms / 1000:g} s make room",
            )
        number = state.next_number
        replicas = {n: replica for n, replica in state.replicas.items() if n not in gone}
        replicas[number] = _replica(beat)
        joined = msgspec.structs.replace(state, replicas=replicas, next_number=number + 1)
        return Store(beat.broker, joined, revision, f"replica {number} at {beat.address} joins")

    def check_known(
        self, beat: ReplicaHeartbeat, wall_ms: int, state: GroupState, new_run: bool
    ) -> Refusal | None:
        if beat.epoch > state.epoch and not self._unclean:
            return misconfigured(
                f"this store has seen epoch {beat.epoch} of {beat.broker}, and this controller knows only of "
                f"{state.epoch}: controllerAddr names the wrong one, or the controller's data is older than the "
                "brokers'. Give it back its newest data; if there is none, start it with --unclean"
            )
        # One that runs already is not stopped because somebody sets a clock.
        return self._clock(beat, wall_ms) if new_run and beat.role == STARTING else None

    def _refused(self, beat: ReplicaHeartbeat, wall_ms: int, home: str | None) -> Refusal | None:
        if home is not None:
            return misconfigured(
                f"this store directory belongs to broker group {home!r}, and the broker that runs on it calls itself "
                f"{beat.broker!r}: correct its brokerName, or start it with an empty directory"
            )
        if beat.role == LEAVING:
            return Refusal(ResponseCode.QUERY_NOT_FOUND, "a broker that leaves was never here")
        return self._clock(beat, wall_ms)

    def _clock(self, beat: ReplicaHeartbeat, wall_ms: int) -> Refusal | None:
        gap_ms = abs(beat.clock_ms - wall_ms)
        if gap_ms <= self._max_clock_gap_ms:
            return None
        side = "ahead of" if beat.clock_ms > wall_ms else "behind"
        return misconfigured(
            f"the clock of the broker's host is {gap_ms / 1000:.1f} s {side} the controller's, allowed are "
            f"{self._max_clock_gap_ms / 1000:g} s: delayed messages and expiry would differ between replicas. Set both "
            "clocks (NTP), or raise controllerMaxClockGap"
        )

    def _replaced(
        self, beat: ReplicaHeartbeat, state: GroupState, presence: Presence, now_ms: int
    ) -> set[int]:
        """Replicas nobody will miss: out of sync, silent, and at this very address or for a long time."""
        full = len(state.replicas) >= MAX_REPLICAS and now_ms - presence.started_ms > self._forget_after_ms
        return {
            number
            for number, replica in state.replicas.items()
            if number not in state.in_sync
            and number not in state.former
            and not presence.alive(number, now_ms)
            and (replica.address == beat.address or (full and self._long_silent(presence, number, now_ms)))
        }

    def _long_silent(self, presence: Presence, number: int, now_ms: int) -> bool:
        live = presence.live.get(number)
        return live is None or now_ms - live.heard_ms > self._forget_after_ms


def _replica(beat: ReplicaHeartbeat) -> Replica:
    return Replica(beat.token, beat.address, beat.ha_address)
