"""How far each consumer group has come: topic@group, then queue, then the next offset to read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

SEPARATOR: Final = "@"

MinOffset = Callable[[str, int], int]
InMemory = Callable[[str, int], bool]


class OffsetTable:
    """Committed offsets. An offset is where the group reads next, so everything below it is done."""

    def __init__(self) -> None:
        self.table: dict[str, dict[int, int]] = {}
        self.changes = 0

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Store an offset. False tells that it moved backwards, which is allowed: resets do it on purpose."""
        key = topic + SEPARATOR + group
        queues = self.table.get(key)
        if queues is None:
            self.table[key] = {queue_id: offset}
            self.changes += 1
            return True
        before = queues.get(queue_id, -1)
        if before == offset:
            return True
        queues[queue_id] = offset
        self.changes += 1
        return offset > before

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The committed offset, or -1 if the group never committed on this queue."""
        queues = self.table.get(topic + SEPARATOR + group)
        return -1 if queues is None else queues.get(queue_id, -1)

    def start_offset(
        self, group: str, topic: str, queue_id: int, min_offset: MinOffset, in_memory: InMemory
    ) -> int | None:
        """Where a consumer starts; None lets the consumer decide by its own ConsumeFromWhere.

        A new group on a young queue starts at 0 whatever it asks for: nothing has been cleaned yet, and
        starting at the end could skip messages sent just before the group first came.
        """
        offset = self.query(group, topic, queue_id)
        if offset >= 0:
            return offset
        if min_offset(topic, queue_id) <= 0 and in_memory(topic, queue_id):
            return 0
        return None

    def queues(self, group: str, topic: str) -> dict[int, int] | None:
        queues = self.table.get(topic + SEPARATOR + group)
        return None if queues is None else dict(queues)

    def topics_of(self, group: str) -> list[str]:
        return [topic for topic, owner in map(split_key, self.table) if owner == group]

    def groups_of(self, topic: str) -> list[str]:
        return [group for name, group in map(split_key, self.table) if name == topic]

    def groups(self) -> list[str]:
        return list(dict.fromkeys(group for _, group in map(split_key, self.table)))

    def clone(self, src_group: str, dest_group: str, topic: str) -> bool:
        """Let one group stand where another does; False if the source has no offsets on the topic."""
        queues = self.queues(src_group, topic)
        if queues is None:
            return False
        self.table[topic + SEPARATOR + dest_group] = queues
        self.changes += 1
        return True

    def remove_group(self, group: str) -> int:
        return self._remove([key for key in self.table if split_key(key)[1] == group])

    def remove_topic(self, topic: str) -> int:
        return self._remove([key for key in self.table if split_key(key)[0] == topic])

    def smallest(
        self,
        topic: str,
        but_groups: Collection[str] = (),
        min_offset: Callable[[int], int] | None = None,
    ) -> dict[int, int]:
        """Per queue, the smallest offset of all groups; offsets below the queue's minimum do not count."""
        smallest: dict[int, int] = {}
        for key, queues in self.table.items():
            name, group = split_key(key)
            if name != topic or group in but_groups:
                continue
            for queue_id, offset in queues.items():
                if min_offset is not None and offset < min_offset(queue_id):
                    continue
                smallest[queue_id] = min(offset, smallest.get(queue_id, offset))
        return smallest

    def drop_stale(self, subscribed: Callable[[str, str], bool], min_offset: MinOffset) -> list[str]:
        """Forget groups that nobody uses and whose messages are all gone; subscribed takes (group, topic)."""
        stale = []
        for key, queues in self.table.items():
            topic, group = split_key(key)
            if subscribed(group, topic):
                continue
            if all(offset <= min_offset(topic, queue_id) for queue_id, offset in queues.items()):
                stale.append(key)
        self._remove(stale)
        return stale

    def to_json(self) -> dict[str, object]:
        return {"offsetTable": {key: dict(queues) for key, queues in self.table.items()}}

    def from_json(self, data: object) -> None:
        self.table = _parse(data)

    def merge(self, data: object) -> None:
        """Take over the entries of another table, as a slave does with its master's, keeping the others."""
        for key, queues in _parse(data).items():
            self.table.setdefault(key, {}).update(queues)
        self.changes += 1

    def _remove(self, keys: list[str]) -> int:
        for key in keys:
            del self.table[key]
        if keys:
            self.changes += 1
        return len(keys)


def split_key(key: str) -> tuple[str, str]:
    """(topic, group) of a key. Neither may contain the separator, so the first one splits."""
    topic, _, group = key.partition(SEPARATOR)
    return topic, group


def _parse(data: object) -> dict[str, dict[int, int]]:
    if not isinstance(data, Mapping):
        raise ValueError("the offset table is not a JSON object; expected offsetTable")
    entries = data.get("offsetTable") or {}
    if not isinstance(entries, Mapping):
        raise ValueError("offsetTable is not a JSON object of topic@group keys")
    table: dict[str, dict[int, int]] = {}
    for key, queues in entries.items():
        if not isinstance(queues, Mapping):
            raise ValueError(f"the offsets of {key!r} are not a JSON object of queue ids")
        table[str(key)] = {int(queue_id): int(offset) for queue_id, offset in queues.items()}
    return table
