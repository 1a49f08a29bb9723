"""Producers online, by group and by client id."""

from __future__ import annotations

from orbitmq.broker.client_info import Channel, Client


class ProducerTable:
    """A connection may be in many groups; a group may have many connections."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[Channel, Client]] = {}
        self._groups_of: dict[Channel, set[str]] = {}
        self._by_client_id: dict[str, list[Client]] = {}
        self._turn = 0

    def register(
        self, conn: Channel, group: str, client_id: str, language: str, version: int, now_ms: int
    ) -> None:
        members = self.groups.setdefault(group, {})
        client = members.get(conn)
        if client is not None and client.client_id != client_id:
            self.leave(conn, group)
            client, members = None, self.groups.setdefault(group, {})
        if client is not None:
            client.seen(client_id, language, version, now_ms)
            return
        client = members[conn] = Client(conn, client_id, language, version, now_ms)
        self._groups_of.setdefault(conn, set()).add(group)
        self._by_client_id.setdefault(client_id, []).append(client)

    def leave(self, conn: Channel, group: str) -> None:
        members = self.groups.get(group)
        client = None if members is None else members.pop(conn, None)
        if members is None or client is None:
            return
        if not members:
            del self.groups[group]
        mine = self._groups_of[conn]
        mine.discard(group)
        if not mine:
            del self._groups_of[conn]
        same = self._by_client_id[client.client_id]
        same.remove(client)
        if not same:
            del self._by_client_id[client.client_id]

    def connection_lost(self, conn: Channel) -> None:
        for group in list(self._groups_of.get(conn, ())):
            self.leave(conn, group)

    def expired(self, before_ms: int) -> list[Channel]:
        """Takes clients last heard of before the given time out; returns their connections."""
        old = [
            (conn, group)
            for group, members in self.groups.items()
            for conn, client in members.items()
            if client.last_seen_ms < before_ms
        ]
        for conn, group in old:
            self.leave(conn, group)
        return list(dict.fromkeys(conn for conn, _ in old))

    def pick(self, group: str) -> Client | None:
        """Any member that can be asked, in turn, so that one busy producer does not get every check."""
        live = [client for client in self.groups.get(group, {}).values() if not client.conn.closed]
        if not live:
            return None
        self._turn += 1
        return live[self._turn % len(live)]

    def find(self, client_id: str) -> Client | None:
        """The newest open connection of a client: after a reconnect the old one may linger."""
        for client in reversed(self._by_client_id.get(client_id, ())):
            if not client.conn.closed:
                return client
        return None

    def connections(self) -> int:
        return len(self._groups_of)
