"""Consumer groups online: members, what the group subscribes to, and members that disagree.

The broker filters by one subscription per group and topic. Members that subscribe differently overwrite each
other's, and messages are lost for one of them without a sign; therefore each member's own subscriptions are
kept too and compared.
"""

from __future__ import annotations

from typing import NamedTuple

from orbitmq.broker.client_info import Channel, Client, GroupChange
from orbitmq.broker.subscriptions import Mismatch, Shape, common_shape, differences, shape_of
from orbitmq.wire.bodies import ConsumerData, SubscriptionData


class Member(Client):
    """A consumer with its own subscriptions, which may differ from the group's."""

    __slots__ = ("shape", "subscriptions")

    def __init__(self, conn: Channel, client_id: str, language: str, version: int, now_ms: int) -> None:
        super().__init__(conn, client_id, language, version, now_ms)
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.shape: Shape = frozenset()


class ConsumerGroup:
    """A group with at least one member. Type, model and start rule are those of the last heartbeat."""

    __slots__ = (
        "consume_from_where",
        "consume_type",
        "members",
        "message_model",
        "name",
        "reported",
        "subscriptions",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type = ""
        self.message_model = ""
        self.consume_from_where = ""
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.members: dict[Channel, Member] = {}
        self.reported: frozenset[Mismatch] = frozenset()

    def client_ids(self) -> list[str]:
        """Each id once.

        A client that reconnected has two connections until the old one is closed; members that saw its id
        twice would leave it two shares of the queues.
        """
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def find(self, client_id: str) -> Member | None:
        """The newest open connection of a member."""
        found = [m for m in self.members.values() if m.client_id == client_id and not m.conn.closed]
        return found[-1] if found else None

    def change(self) -> GroupChange:
        return GroupChange(self.name, tuple(self.members))

    def update_subscriptions(self, wanted: dict[str, SubscriptionData]) -> bool:
        """Newer versions replace, topics not named are dropped; True if the set of topics changed."""
        changed = False
        for topic, subscription in wanted.items():
            current = self.subscriptions.get(topic)
            if current is None:
                changed = True
            elif subscription.sub_version <= current.sub_version:
                continue
            self.subscriptions[topic] = subscription
        for topic in self.subscriptions.keys() - wanted.keys():
            del self.subscriptions[topic]
            changed = True
        return changed

    def mismatches(self) -> list[Mismatch]:
        """Members that differ from what most members subscribe to; a tie is decided by the oldest."""
        shapes = [member.shape for member in self.members.values()]
        if len(set(shapes)) < 2:
            return []
        common = common_shape(shapes)
        return [
            mismatch
            for member in self.members.values()
            if member.shape != common
            for mismatch in differences(member.client_id, member.shape, common)
        ]


class Registration(NamedTuple):
    """What one consumer's heartbeat did: the group changed, new disagreements, or why it was refused."""

    change: GroupChange | None
    mismatches: list[Mismatch]
    refused: list[Mismatch]


class ConsumerTable:
    """Consumer groups by name."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[Channel, set[str]] = {}

    def register(
        self,
        conn: Channel,
        client_id: str,
        language: str,
        version: int,
        data: ConsumerData,
        now_ms: int,
        *,
        refuse_mismatch: bool,
    ) -> Registration:
        wanted = newest_by_topic(data.subscription_data_set)
        shape = shape_of(wanted.values())
        group = self.groups.get(data.group_name)
        if group is not None and refuse_mismatch:
            refused = self._conflict(group, conn, client_id, shape)
            if refused:
                # A member that changed its mind must not go on with queues under the old subscription either.
                return Registration(self.leave(conn, group.name), [], refused)
        if group is None:
            group = self.groups[data.group_name] = ConsumerGroup(data.group_name)
        member = group.members.get(conn)
        joined = member is None or member.client_id != client_id
        if member is None:
            member = group.members[conn] = Member(conn, client_id, language, version, now_ms)
            self._groups_of.setdefault(conn, set()).add(group.name)
        member.seen(client_id, language, version, now_ms)
        member.subscriptions = wanted
        member.shape = shape
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        topics_changed = group.update_subscriptions(wanted)
        change = group.change() if joined or topics_changed else None
        return Registration(change, self._new_mismatches(group), [])

    def leave(self, conn: Channel, name: str) -> GroupChange | None:
        group = self.groups.get(name)
        if group is None or group.members.pop(conn, None) is None:
            return None
        mine = self._groups_of[conn]
        mine.discard(name)
        if not mine:
            del self._groups_of[conn]
        if not group.members:
            del self.groups[name]
        else:
            # The disagreement may have left with the member; if it comes back it shall be told again.
            group.reported &= frozenset(group.mismatches())
        return group.change()

    def connection_lost(self, conn: Channel) -> list[GroupChange]:
        changes = [self.leave(conn, name) for name in sorted(self._groups_of.get(conn, ()))]
        return [change for change in changes if change is not None]

    def expired(self, before_ms: int) -> tuple[list[Channel], list[GroupChange]]:
        """Takes out members last heard of before the given time; returns connections and changes."""
        old = [
            (conn, group.name)
            for group in self.groups.values()
            for conn, member in group.members.items()
            if member.last_seen_ms < before_ms
        ]
        # The last change of a group names those that are left after all have gone.
        changes = {name: change for conn, name in old if (change := self.leave(conn, name)) is not None}
        return list(dict.fromkeys(conn for conn, _ in old)), list(changes.values())

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        found = self.groups.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def connections(self) -> int:
        return len(self._groups_of)

    @staticmethod
    def _conflict(group: ConsumerGroup, conn: Channel, client_id: str, shape: Shape) -> list[Mismatch]:
        # The client's own old connection may linger after a reconnect; it does not count against it.
        others = [
            member.shape
            for other, member in group.members.items()
            if other is not conn and member.client_id != client_id
        ]
        return differences(client_id, shape, common_shape(others)) if others else []

    @staticmethod
    def _new_mismatches(group: ConsumerGroup) -> list[Mismatch]:
        """The group's disagreements if they are not the ones told last time."""
        found = group.mismatches()
        now = frozenset(found)
        if now == group.reported:
            return []
        group.reported = now
        return found


def newest_by_topic(subscriptions: list[SubscriptionData]) -> dict[str, SubscriptionData]:
    newest: dict[str, SubscriptionData] = {}
    for subscription in subscriptions:
        current = newest.get(subscription.topic)
        if current is None or subscription.sub_version > current.sub_version:
            newest[subscription.topic] = subscription
    return newest
