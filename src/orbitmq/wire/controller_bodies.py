"""Bodies between brokers, tools and the controller: heartbeats, changes of an in-sync set, what is known.

A *replica* is one broker process of a broker group, by the number the controller gave its store directory.
"""

from __future__ import annotations

from typing import Final

import msgspec

from orbitmq.wire.body_codec import Body
from orbitmq.wire.header_fields import Int32, Int64

STARTING: Final = "starting"
SLAVE: Final = "slave"
MASTER: Final = "master"
RESIGNED: Final = "resigned"
"""Was master, takes no writes any more, and every member of its ack set has all of them."""
DECLINED: Final = "declined"
"""Was elected and could not begin: in this epoch it has neither taken nor acknowledged nor shown any message."""
LEAVING: Final = "leaving"
"""About to stop: has done what a resigned one has done, and wants not to be chosen again."""
ROLES: Final = (STARTING, SLAVE, MASTER, RESIGNED, DECLINED, LEAVING)


class ReplicaHeartbeat(Body, kw_only=True):
    """CONTROLLER_HEARTBEAT: what a replica is at the moment of sending."""

    address: str = ""
    broker: str = ""
    clock_ms: Int64 = 0
    """The sender's wall clock, only to notice clocks that are far apart."""
    cluster: str = ""
    end: Int64 = 0
    epoch: Int64 = 0
    """Who was elected: the epoch it serves, or gave back. Anybody else: the last epoch of its history."""
    ha_address: str = ""
    role: str = STARTING
    run: str = ""
    token: str = ""


class GroupAnswer(Body, kw_only=True):
    """The answer to a heartbeat and to ALTER_IN_SYNC: who is master, and who has everything it acknowledged."""

    epoch: Int64 = 0
    in_sync: list[Int32] = msgspec.field(default_factory=list)
    lease_ms: Int64 = 0
    master: Int32 | None = None
    """Nobody, when it is missing."""
    master_address: str | None = None
    master_ha_address: str | None = None
    replica: Int32 = 0
    """The number of the one that asked."""
    resign: bool = False
    """To the master: stop writes, wait for the ack set, then say so with the role `resigned`."""
    version: Int64 = 0


class AlterInSync(Body, kw_only=True):
    """ALTER_IN_SYNC: a master's wish for another in-sync set, on top of the version it knows."""

    broker: str = ""
    cluster: str = ""
    epoch: Int64 = 0
    in_sync: list[Int32] = msgspec.field(default_factory=list)
    replica: Int32 = 0
    version: Int64 = 0


class HandOver(Body, kw_only=True):
    """HAND_OVER: a tool's wish for another master."""

    broker: str = ""
    to: Int32 | None = None
    """The replica that should be next; anyone in sync when missing."""
    unclean: bool = False
    """If nobody in sync is alive, take anyone, and give up what only the others have."""


class ReplicaView(Body, kw_only=True):
    """One replica, as the controller sees it."""

    address: str = ""
    alive: bool = False
    end: Int64 = 0
    epoch: Int64 = 0
    ha_address: str = ""
    heard_ms_ago: Int64 | None = None
    """Missing: never since this controller became the active one."""
    in_sync: bool = False
    replica: Int32 = 0
    role: str = ""


class GroupView(Body, kw_only=True):
    """One broker group, as the controller sees it; also the answer to HAND_OVER."""

    broker: str = ""
    cluster: str = ""
    epoch: Int64 = 0
    in_sync: list[Int32] = msgspec.field(default_factory=list)
    lease_ms_left: Int64 | None = None
    """Until somebody else may be chosen; missing when there is no master."""
    master: Int32 | None = None
    problem: str | None = None
    """Why there is no master, in words."""
    replicas: list[ReplicaView] = msgspec.field(default_factory=list)
    version: Int64 = 0


class ControllerState(Body, kw_only=True):
    """CONTROLLER_STATE: everything the active controller knows."""

    address: str = ""
    engine: str = ""
    groups: list[GroupView] = msgspec.field(default_factory=list)
    lease_ms: Int64 = 0
