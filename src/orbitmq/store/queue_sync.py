"""Bringing queues, index and checkpoint to the device now and then: what bounds the work of the next recovery.

It is also what cleaning waits for. Once a log file is gone only the queues' files know which offsets it had taken, so
a power cut must not find them behind.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from orbitmq.store.checkpoint import Checkpoint
from orbitmq.store.flush import sync_files
from orbitmq.store.mark import FILE_NAME as MARK_FILE
from orbitmq.store.mark import QueueEnds

if TYPE_CHECKING:
    from orbitmq.store.message_store import MessageStore

log = logging.getLogger("orbitmq.store")


class QueueSync:
    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._last_ms = 0
        self._synced_to = 0
        self._under_way = False
        self._fails = False
        self._waiters: list[tuple[int, Callable[[], None]]] = []
        self._wanted_to: int | None = None
        """So much of the log the cleaner waits for."""

    def opened(self, now_ms: int) -> None:
        self._last_ms = now_ms

    def tick(self, now_ms: int) -> None:
        if now_ms - self._last_ms >= self._store.settings.queue_sync_interval_ms:
            self._last_ms = now_ms
            self._start()

    def when_covered(self, log_end: int, call: Callable[[], None]) -> None:
        """Calls when the queues' part of the log before this is on the device, or cannot get there."""
        self._waiters.append((log_end, call))
        self._start()
        self._tell()

    def covers(self, log_end: int) -> bool:
        """Whether the queues' part of the log before this is on the device; if not, the cleaner runs again when it is.

        A device that does not take it is no reason to keep files: on a full one, deleting them is what helps.
        """
        self._wanted_to = None  # the cleaner is at work: it must not be started by what ends meanwhile
        if not self._is_settled(log_end):
            self._start()
        if not self._is_settled(log_end):
            self._wanted_to = log_end
        return self._wanted_to is None

    def _is_settled(self, log_end: int) -> bool:
        return self._synced_to >= log_end or self._fails or self._store.durability.failed

    def _start(self) -> None:
        store = self._store
        if self._under_way or store.durability.failed:
            return
        if not store.write_queues():
            self._ended(fails=True)
            return
        position = store.queues_end()
        store_ms = store.log.committed_ms
        if position == store.mark.safe_offset:
            self._synced_to = position
            self._fails = False
            return
        flush_log = store.durability.flush_job()
        queues = [queue for queue in store.all_queues() if queue.unsynced]
        paths = self._take_paths()
        ends = store.queue_ends()
        index_ms = store.checkpoint.index_ms
        log_flushed = False

        def job() -> None:
            nonlocal index_ms, log_flushed
            flush_log()
            log_flushed = True
            sync_files(store.disk, paths)
            if store.index is not None:
                index_ms = store.index.flush()

        def done(error: BaseException | None) -> None:
            self._under_way = False
            if error is not None:
                log.error("the store could not be brought to the disk: %s", error)
                for queue in queues:
                    queue.unsynced = True
                if not log_flushed:
                    store.durability.fail(error)
            elif store.is_open:
                try:
                    self._save(position, store_ms, index_ms, ends)
                except OSError as problem:
                    error = problem
                    log.error("the checkpoint could not be saved, will be tried again: %s", problem)
            self._ended(fails=error is not None)

        self._under_way = True
        store.durability.submit(job, done)

    def _ended(self, *, fails: bool) -> None:
        self._fails = fails
        self._tell()
        if self._waiters and self._store.is_open:  # they came when this one was under way
            self._start()
            self._tell()
        if self._wanted_to is not None and self._is_settled(self._wanted_to) and self._store.is_open:
            self._wanted_to = None
            self._store.cleaner.run(self._store.cleaner.postponed_by_hand)

    def _tell(self) -> None:
        due = [call for log_end, call in self._waiters if self._is_settled(log_end)]
        self._waiters = [waiter for waiter in self._waiters if not self._is_settled(waiter[0])]
        for call in due:
            call()

    def finish(self) -> None:
        """Everything, now: the store is being closed. OSError when the device does not take it."""
        store = self._store
        sync_files(store.disk, self._take_paths())
        index_ms = store.index.flush() if store.index is not None else store.checkpoint.index_ms
        self._save(store.queues_end(), store.log.committed_ms, index_ms, store.queue_ends())

    def _take_paths(self) -> list[str]:
        queues = self._store.all_queues()
        return [path for queue in queues if queue.unsynced for path in queue.take_unsynced_paths()]

    def _save(self, position: int, store_ms: int, index_ms: int, queue_ends: QueueEnds) -> None:
        store, mark, root = self._store, self._store.mark, self._store.settings.root
        store.flush_note.expect_checkpoint(store_ms)
        store.checkpoint = Checkpoint(store_ms, store_ms, max(index_ms, store.checkpoint.index_ms))
        store.checkpoint.save(store.disk, os.path.join(root, "checkpoint"))
        mark.safe_offset = position
        mark.checkpoint_ms = store_ms
        # A topic may have been deleted while the disk was at work.
        deleted = mark.deleted_topics
        mark.queue_ends = {t: ends for t, ends in queue_ends.items() if deleted.get(t, -1) < position}
        mark.forget_before(store.log.start)
        mark.save(store.disk, os.path.join(root, MARK_FILE))
        self._synced_to = position
