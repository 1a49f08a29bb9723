"""Which queues belong to which member of a group.

There is no coordinator: every member sorts the same queues and the same client ids, applies the same rule and
takes its own share. All members must use the same rule, whatever language they are written in, or a queue gets
two owners or none. The names are those of Apache RocketMQ's strategies.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Final, Protocol

from orbitmq.client.errors import BadRequest
from orbitmq.wire.fastjson import MessageQueue

VIRTUAL_NODES: Final = 10


class Strategy(Protocol):
    @property
    def name(self) -> str: ...

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """The share of one member. Queues and members are sorted; a client that is not a member gets none."""


def share(
    strategy: Strategy, client_id: str, queues: Iterable[MessageQueue], members: Iterable[str]
) -> list[MessageQueue]:
    """The share of one member of whatever order queues and members come in."""
    everyone = sorted(set(members))
    everything = sorted(set(queues))
    if client_id not in everyone or not everything:
        return []
    return strategy.allocate(client_id, everything, everyone)


@dataclass(frozen=True)
class Average:
    """Blocks of neighbouring queues; the first members get one more when it does not come out even."""

    name: str = "AVG"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        index = members.index(client_id)
        size, more = divmod(len(queues), len(members))
        start = index * size + min(index, more)
        return list(queues[start : start + size + (1 if index < more else 0)])


@dataclass(frozen=True)
class Circle:
    """Dealt out in turn, like cards."""

    name: str = "AVG_BY_CIRCLE"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        return list(queues[members.index(client_id) :: len(members)])


@dataclass(frozen=True)
class ConsistentHash:
    """By position on a ring: a member that joins or leaves moves only its own share."""

    virtual_nodes: int = VIRTUAL_NODES
    name: str = "CONSISTENT_HASH"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        ring = {
            _ring_position(f"{member}-{number}"): member
            for member in members
            for number in range(self.virtual_nodes)
        }
        positions = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            at = bisect_left(positions, _ring_position(_queue_text(queue)))
            return ring[positions[at % len(positions)]]

        return [queue for queue in queues if owner(queue) == client_id]


@dataclass(frozen=True)
class MachineRoom:
    """Only queues of brokers called `room@name` in the given rooms; what is left over goes to the first members."""

    rooms: frozenset[str]
    name: str = "MACHINE_ROOM"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        near = [queue for queue in queues if _room_of_broker(queue) in self.rooms]
        index = members.index(client_id)
        size, more = divmod(len(near), len(members))
        mine = near[index * size : (index + 1) * size]
        if index < more:
            mine.append(near[index + size * len(members)])
        return mine


@dataclass(frozen=True)
class Fixed:
    """The queues a member was configured with, whoever else there is."""

    queues: tuple[MessageQueue, ...]
    name: str = "CONFIG"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        return [queue for queue in queues if queue in self.queues]


@dataclass(frozen=True)
class NearbyRoom:
    """Members of a room share the queues of that room; rooms without members are shared by all."""

    room_of_queue: Callable[[MessageQueue], str]
    room_of_client: Callable[[str], str]
    inner: Strategy

    @property
    def name(self) -> str:
        return f"MACHINE_ROOM_NEARBY-{self.inner.name}"

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        own_room = self.room_of_client(client_id)
        peopled: dict[str, list[str]] = {}
        for member in members:
            peopled.setdefault(self.room_of_client(member), []).append(member)
        rooms: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            rooms.setdefault(self.room_of_queue(queue), []).append(queue)
        mine: list[MessageQueue] = []
        for room in sorted(rooms, key=lambda room: (room != own_room, room)):
            if room == own_room:
                mine += self.inner.allocate(client_id, rooms[room], peopled[room])
            elif room not in peopled:
                mine += self.inner.allocate(client_id, rooms[room], members)
        return mine


AVERAGE: Final = Average()
BY_NAME: Final[Mapping[str, Strategy]] = {
    "average": AVERAGE,
    "circle": Circle(),
    "consistent-hash": ConsistentHash(),
}


def strategy_named(chosen: str | Strategy) -> Strategy:
    if not isinstance(chosen, str):
        return chosen
    found = BY_NAME.get(chosen.lower().replace("_", "-"))
    if found is None:
        raise BadRequest(
            f"there is no allocation strategy '{chosen}'",
            hint=f"choose {', '.join(BY_NAME)}, or pass MachineRoom(...), NearbyRoom(...) or Fixed(...)",
        )
    return found


def _queue_text(queue: MessageQueue) -> str:
    """How Java prints a queue, which is what it hashes."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _ring_position(key: str) -> int:
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


def _room_of_broker(queue: MessageQueue) -> str | None:
    room, at, name = queue.broker_name.partition("@")
    return room if at and name and "@" not in name else None
