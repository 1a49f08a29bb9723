"""A broker's place in its group, in controller mode: what it says of itself, and what the controller answers.

Heartbeats go out several times per lease. The answer to one tells who is master; if it is this broker, its lease lasts
from the moment the question was sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orbitmq.cluster.lease import Lease
from orbitmq.net.controller_line import ControllerLine, NoController
from orbitmq.wire.body_codec import decode, encode
from orbitmq.wire.codes import OrbitCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.controller_bodies import MASTER, STARTING, AlterInSync, GroupAnswer, ReplicaHeartbeat
from orbitmq.wire.errors import WireError

log = logging.getLogger("orbitmq.broker")

BEATS_PER_LEASE: Final = 10
FIRST_LEASE_S: Final = 2.0


class NotWelcome(Exception):
    """The controller does not serve this broker as it is set up; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    cluster: str
    broker: str
    token: str
    run: str


class Membership:
    """`clock_s` never jumps and goes on while the machine sleeps, `clock_ms` is the wall clock."""

    def __init__(
        self,
        identity: ReplicaIdentity,
        line: ControllerLine,
        clock_s: Callable[[], float],
        clock_ms: Callable[[], int],
        number: int = 0,
    ) -> None:
        self.identity = identity
        self._line = line
        self._clock_s = clock_s
        self._clock_ms = clock_ms
        self._problem = ""
        self.lease = Lease(clock_s)
        self.role = STARTING
        self.epoch = 0
        """As master, the epoch it serves; otherwise the last one of its history."""
        self.address = ""
        self.ha_address = ""
        self.known: GroupAnswer | None = None
        self.number = number
        """What the controller calls this broker; 0 as long as none has."""
        self.lease_s = FIRST_LEASE_S
        self._sent_s = float("-inf")

    @property
    def beat_s(self) -> float:
        return self.lease_s / BEATS_PER_LEASE

    async def beat(self, end: int) -> GroupAnswer | None:
        """One heartbeat; None when no controller answered. NotWelcome when one answered and will have none of it."""
        role, epoch, who = self.role, self.epoch, self.identity
        body = ReplicaHeartbeat(
            address=self.address,
            broker=who.broker,
            clock_ms=self._clock_ms(),
            cluster=who.cluster,
            end=end,
            epoch=epoch,
            ha_address=self.ha_address,
            role=role,
            run=who.run,
            token=who.token,
        )
        sent_s = self._clock_s()
        answer = await self._ask(request(OrbitCode.CONTROLLER_HEARTBEAT, body=encode(body)))
        if answer is None:
            return None
        self.known = answer
        self._sent_s = sent_s
        self.number = answer.replica
        self.lease_s = max(0.1, answer.lease_ms / 1000)
        if role == MASTER and answer.master == answer.replica and answer.epoch == epoch:
            self.lease.renew(sent_s, self.lease_s)
        return answer

    def claim(self, epoch: int) -> None:
        """Takes office: the last answer named this broker, and its lease counts from that question on."""
        self.role, self.epoch = MASTER, epoch
        self.lease.renew(self._sent_s, self.lease_s)

    async def alter(self, in_sync: frozenset[int], version: int) -> tuple[bool, GroupAnswer] | None:
        """Asks for another in-sync set: whether it was granted, and what holds now. None: nobody knows."""
        who = self.identity
        body = AlterInSync(
            broker=who.broker,
            cluster=who.cluster,
            epoch=self.epoch,
            in_sync=sorted(in_sync),
            replica=self.number,
            version=version,
        )
        try:
            response = await self._line.ask(
                request(OrbitCode.ALTER_IN_SYNC, body=encode(body)), self._patience_s
            )
            if response.code not in (ResponseCode.SUCCESS, ResponseCode.IN_SYNC_REFUSED):
                raise NoController(response.remark or str(response.code))
            return response.code == ResponseCode.SUCCESS, decode(GroupAnswer, response.body)
        except (NoController, WireError) as error:
            log.warning(
                "the in-sync set %s was asked for, and what came of it is not known: %s",
                sorted(in_sync),
                error,
            )
            return None

    @property
    def _patience_s(self) -> float:
        """Long enough for a busy controller, short enough to ask again before the lease has run out."""
        return self.lease_s / 3

    async def _ask(self, command: Command) -> GroupAnswer | None:
        try:
            response = await self._line.ask(command, self._patience_s)
            if response.code == ResponseCode.MISCONFIGURED:
                raise NotWelcome(response.remark or "the controller refuses this broker")
            if response.code != ResponseCode.SUCCESS:
                raise NoController(response.remark or str(response.code))
            answer = decode(GroupAnswer, response.body)
        except (NoController, WireError) as error:
            if str(error) != self._problem:
                log.warning("no controller answers: %s", error)
            self._problem = str(error)
            return None
        if self._problem:
            log.info("a controller answers again")
            self._problem = ""
        return answer

    async def close(self) -> None:
        await self._line.close()
