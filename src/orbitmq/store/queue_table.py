"""The queues of a store by topic and id, and their directories."""

from __future__ import annotations

import os
from collections.abc import Iterator

from orbitmq.store.consume_queue import ConsumeQueue
from orbitmq.store.disk import Disk
from orbitmq.store.segment import DescriptorCache


class QueueTable:
    def __init__(self, disk: Disk, root: str, file_bytes: int) -> None:
        self.disk = disk
        self._queue_root = os.path.join(root, "consumequeue")
        self._queue_file_bytes = file_bytes
        self._queue_files = DescriptorCache(disk)
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._by_topic: dict[str, dict[int, ConsumeQueue]] = {}
        self.removals = 0
        """Grows when queues go: whoever keeps some of them looks again."""

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made if it is new."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = ConsumeQueue(
                self.disk, self._queue_root, topic, queue_id, self._queue_file_bytes, self._queue_files
            )
            self._queues[topic, queue_id] = queue
            self._by_topic.setdefault(topic, {})[queue_id] = queue
        return queue

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def queues_of(self, topic: str) -> dict[int, ConsumeQueue]:
        return self._by_topic.get(topic, {})

    def topics(self) -> list[str]:
        return list(self._by_topic)

    def all_queues(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def queue_ends(self) -> dict[str, dict[int, int]]:
        """By topic and queue id, the ends of the queues that hold something."""
        return {
            topic: {queue_id: queue.max_offset for queue_id, queue in queues.items() if queue.max_offset}
            for topic, queues in self._by_topic.items()
        }

    def _load_queues(self) -> None:
        for topic in self.disk.listdir(self._queue_root):
            for name in self.disk.listdir(os.path.join(self._queue_root, topic)):
                if name.isdigit():
                    self.queue(topic, int(name)).load()

    def _remove_queues(self, topic: str) -> list[ConsumeQueue]:
        """Forgets the queues of a topic and deletes their files; returns what they were."""
        removed = self._by_topic.pop(topic, {})
        self.removals += 1
        home = os.path.join(self._queue_root, topic)
        for queue_id, queue in removed.items():
            queue.close()
            queue.destroy()
            del self._queues[topic, queue_id]
            directory = os.path.join(home, str(queue_id))
            if self.disk.exists(directory):
                self.disk.rmdir(directory)
        if self.disk.exists(home):
            self.disk.rmdir(home)
        return list(removed.values())

    def _close_queues(self) -> None:
        for queue in self._queues.values():
            queue.close()
        self._queue_files.close()
