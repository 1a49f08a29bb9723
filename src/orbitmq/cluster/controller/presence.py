"""Which process stands for which replica, and when it was heard. Pure: event and time in.

A store directory has a token, each run of a broker on it an id of its own. A new run takes the place of the old one
when that has left or has been silent for as long as its lease could last; until then it waits. So a copy of a store
directory, started beside the original, never gets in: it waits, and when the original is still heard a whole lease
later, again and again, it is told what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from orbitmq.wire.controller_bodies import DECLINED, LEAVING, RESIGNED, ReplicaHeartbeat

PROOF_BEATS: Final = 4


class Admission(Enum):
    WELCOME = "welcome"
    WAIT = "wait"
    COPY = "copy"


@dataclass(slots=True)
class Live:
    """What is known of one replica since this controller became the active one."""

    run: str
    heard_ms: int
    heard: bool = True
    """False: it was only taken for granted, when this controller became the active one."""
    role: str = ""
    epoch: int = 0
    end: int = 0
    left: bool = False
    """It said that it leaves. A run that left does not come back, whatever arrives late."""
    resigned: int = 0
    """The last epoch it resigned from; it never serves that one again."""
    rival: str = ""
    rival_since_ms: int = 0
    beats_since_rival: int = 0


class Presence:
    """The replicas of one group."""

    def __init__(self, lease_ms: int, silence_ms: int, started_ms: int) -> None:
        self._lease_ms = lease_ms
        self._silence_ms = silence_ms
        self.started_ms = started_ms
        self.live: dict[int, Live] = {}

    def assume(self, number: int, run: str, epoch: int, now_ms: int) -> None:
        """A master from before this controller's time: it may hold a lease, so nobody else may be it yet."""
        self.live[number] = Live(run, now_ms, heard=False, epoch=epoch)

    def is_new(self, number: int, run: str) -> bool:
        live = self.live.get(number)
        return live is None or live.run != run

    def admit(self, number: int, run: str, now_ms: int) -> Admission:
        live = self.live.get(number)
        if live is None or (live.run != run and self._gone(live, now_ms)):
            self.live[number] = Live(run, now_ms)
            return Admission.WELCOME
        if live.run == run:
            return Admission.WELCOME
        if live.rival != run:
            live.rival, live.rival_since_ms, live.beats_since_rival = run, now_ms, 0
        # A late message of a process that died is no proof that it lives, nor are two that a network held back.
        lives = live.beats_since_rival >= PROOF_BEATS
        if lives and live.heard_ms - live.rival_since_ms > self._silence_ms:
            return Admission.COPY
        return Admission.WAIT

    def note(self, number: int, beat: ReplicaHeartbeat, now_ms: int) -> Live:
        """Takes over what an admitted run says of itself."""
        live = self.live[number]
        live.heard_ms = max(live.heard_ms, now_ms)
        live.heard = True
        live.beats_since_rival += 1
        live.role, live.epoch, live.end = beat.role, beat.epoch, beat.end
        if beat.role == LEAVING:
            live.left = True
        elif beat.role in (RESIGNED, DECLINED):
            live.resigned = max(live.resigned, beat.epoch)
        return live

    def alive(self, number: int, now_ms: int) -> bool:
        live = self.live.get(number)
        return live is not None and live.heard and not live.left and now_ms - live.heard_ms <= self._lease_ms

    def undecided(self, number: int, since_ms: int, now_ms: int) -> bool:
        """Whether it may be alive, and has not been heard since that moment."""
        live = self.live.get(number)
        if live is None or not live.heard:
            return now_ms - self.started_ms <= self._lease_ms
        return live.heard_ms < since_ms and self.alive(number, now_ms)

    def _gone(self, live: Live, now_ms: int) -> bool:
        return live.left or now_ms - live.heard_ms > self._silence_ms
