"""All clients online: producers and consumers, until they say goodbye, fall silent or hang up."""

from __future__ import annotations

from typing import NamedTuple

from orbitmq.broker.client_info import CLIENT_EXPIRE_MS, Channel, Client, GroupChange
from orbitmq.broker.consumers import ConsumerGroup, ConsumerTable, Member
from orbitmq.broker.producers import ProducerTable
from orbitmq.broker.subscriptions import Mismatch
from orbitmq.wire.bodies import HeartbeatData

__all__ = [
    "Channel",
    "Client",
    "ClientManager",
    "ConsumerGroup",
    "Expired",
    "GroupChange",
    "Heartbeat",
    "Member",
    "Mismatch",
]


class Heartbeat(NamedTuple):
    """What a heartbeat did: new mismatches are to be logged, refused groups to be answered with an error."""

    changes: list[GroupChange]
    mismatches: dict[str, list[Mismatch]]
    refused: dict[str, list[Mismatch]]


class Expired(NamedTuple):
    """Connections to close because their clients fell silent, and groups that changed by it."""

    conns: list[Channel]
    changes: list[GroupChange]


class ClientManager:
    """Events in, changes out. The caller sends NOTIFY_CONSUMER_IDS_CHANGED for each GroupChange."""

    def __init__(self, expire_ms: int = CLIENT_EXPIRE_MS) -> None:
        self.expire_ms = expire_ms
        self._producers = ProducerTable()
        self._consumers = ConsumerTable()
        self.groups = self._consumers.groups
        """Of consumers; to be looked at only."""
        self.subscription = self._consumers.subscription
        self.mismatch_total = 0
        """Disagreements inside groups found since the start, each counted once until it changes."""
        self.mismatch_refused_total = 0

    def heartbeat(
        self,
        conn: Channel,
        beat: HeartbeatData,
        language: str,
        version: int,
        now_ms: int,
        *,
        refuse_mismatch: bool = False,
    ) -> Heartbeat:
        result = Heartbeat([], {}, {})
        client_id = beat.client_id
        for consumer in beat.consumer_data_set:
            registration = self._consumers.register(
                conn, client_id, language, version, consumer, now_ms, refuse_mismatch=refuse_mismatch
            )
            if registration.change is not None:
                result.changes.append(registration.change)
            if registration.mismatches:
                result.mismatches[consumer.group_name] = registration.mismatches
                self.mismatch_total += 1
            if registration.refused:
                result.refused[consumer.group_name] = registration.refused
                self.mismatch_refused_total += 1
        for producer in beat.producer_data_set:
            self._producers.register(conn, producer.group_name, client_id, language, version, now_ms)
        return result

    def unregister(
        self, conn: Channel, client_id: str, producer_group: str | None, consumer_group: str | None
    ) -> list[GroupChange]:
        """A client leaves groups in good order. Another client on the same connection is not touched."""
        if producer_group:
            producer = self._producers.groups.get(producer_group, {}).get(conn)
            if producer is not None and producer.client_id == client_id:
                self._producers.leave(conn, producer_group)
        change = None
        if consumer_group:
            group = self._consumers.groups.get(consumer_group)
            member = None if group is None else group.members.get(conn)
            if member is not None and member.client_id == client_id:
                change = self._consumers.leave(conn, consumer_group)
        return [] if change is None else [change]

    def connection_lost(self, conn: Channel) -> list[GroupChange]:
        self._producers.connection_lost(conn)
        return self._consumers.connection_lost(conn)

    def expire(self, now_ms: int) -> Expired:
        """Takes clients out that sent no heartbeat for too long."""
        before_ms = now_ms - self.expire_ms
        silent_producers = self._producers.expired(before_ms)
        silent_consumers, changes = self._consumers.expired(before_ms)
        return Expired(list(dict.fromkeys(silent_producers + silent_consumers)), changes)

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        return self._consumers.groups.get(group)

    def consumer_groups(self) -> list[str]:
        return list(self._consumers.groups)

    def consumer_ids(self, group: str) -> list[str]:
        found = self._consumers.groups.get(group)
        return [] if found is None else found.client_ids()

    def find_consumer(self, group: str, client_id: str) -> Member | None:
        found = self._consumers.groups.get(group)
        return None if found is None else found.find(client_id)

    def groups_of_topic(self, topic: str) -> list[str]:
        return [name for name, group in self._consumers.groups.items() if topic in group.subscriptions]

    def mismatches(self, group: str) -> list[Mismatch]:
        found = self._consumers.groups.get(group)
        return [] if found is None else found.mismatches()

    def mismatched_groups(self) -> list[str]:
        """Groups whose members disagree now."""
        return [name for name, group in self._consumers.groups.items() if group.reported]

    def producer_group(self, group: str) -> list[Client]:
        return list(self._producers.groups.get(group, {}).values())

    def producer_groups(self) -> dict[str, list[Client]]:
        return {group: list(members.values()) for group, members in self._producers.groups.items()}

    def pick_producer(self, group: str) -> Client | None:
        return self._producers.pick(group)

    def find_producer(self, client_id: str) -> Client | None:
        return self._producers.find(client_id)

    def counts(self) -> tuple[int, int]:
        """Connections with producers, connections with consumers."""
        return self._producers.connections(), self._consumers.connections()
