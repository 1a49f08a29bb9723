"""The store as the broker sees it: append, become durable, read, find.

Everything runs on one thread (the event loop's); only flush jobs run elsewhere, through the `Runner`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from orbitmq.store.checkpoint import Checkpoint
from orbitmq.store.cleaner import Cleaned, Cleaner
from orbitmq.store.commit_log import CommitLog
from orbitmq.store.consume_queue import ConsumeQueue
from orbitmq.store.disk import Disk
from orbitmq.store.dispatch import Dispatcher
from orbitmq.store.durability import Copies, Durability, Durable, Waiter
from orbitmq.store.fault import Fault
from orbitmq.store.flush import InlineRunner, Runner
from orbitmq.store.flush_note import FlushNote
from orbitmq.store.inner_message import InnerMessage, PutResult
from orbitmq.store.key_index import IndexService
from orbitmq.store.log_room import LogRoom
from orbitmq.store.mark import FILE_NAME as MARK_FILE
from orbitmq.store.mark import RecoveryMark
from orbitmq.store.next_segment import NextSegment
from orbitmq.store.queue_sync import QueueSync
from orbitmq.store.queue_table import QueueTable
from orbitmq.store.reading import QueueReader, ReadLimits
from orbitmq.store.recovery import recover
from orbitmq.store.recovery_report import RecoveryReport
from orbitmq.store.retention import RetentionRules
from orbitmq.store.segment import DescriptorCache, SegmentSeries
from orbitmq.store.settings import StoreSettings
from orbitmq.store.staged import Staged
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.topics import is_system_topic

if TYPE_CHECKING:
    from orbitmq.store.file_lock import FileLock

log = logging.getLogger("orbitmq.store")


class MessageStore(QueueTable):
    def __init__(
        self,
        settings: StoreSettings,
        disk: Disk,
        clock: Callable[[], int],
        runner: Runner | None = None,
        limits: ReadLimits | None = None,
        retention: RetentionRules | None = None,
    ) -> None:
        super().__init__(disk, settings.root, settings.consume_queue_file_bytes)
        self.settings = settings
        self.clock = clock
        self._runner = runner or InlineRunner()
        self._log_files = DescriptorCache(disk, limit=1 << 20)
        series = SegmentSeries(disk, settings.log_directory, settings.commit_log_file_bytes, self._log_files)
        self.log = CommitLog(disk, series, clock, settings.store_host)
        self.index: IndexService | None = None
        if settings.index_enable:
            self.index = IndexService(
                disk, self._path("index"), clock, settings.index_slots, settings.index_entries
            )
        self.dispatcher = Dispatcher(self.index)
        self.reader = QueueReader(self.log, settings.in_memory_bytes, limits or ReadLimits())
        self.cleaner = Cleaner(self, retention or RetentionRules(), self._runner)
        self._queue_sync = QueueSync(self)
        self.cleaner.guards.append(self._queue_sync.covers)
        self.checkpoint = Checkpoint()
        self.mark = RecoveryMark()
        self.flush_note = FlushNote(disk, settings.root)
        self.on_growth: Callable[[], None] | None = None  # more is written, or on the device
        self.copies: Copies | None = None
        self.copied_to: int | None = (
            None  # where given, nothing behind it is shown: it might be cut away again
        )
        self.fault: Fault | None = None
        self.before_writes: list[Callable[[], None]] = []
        self.durability: Durability
        self._lock: FileLock | None = None
        self._waiting_dispatch: list[tuple[int, Staged]] = []
        self._shown_to = 0
        self.held_from: int | None = None  # a slave's log from there on is in no queue yet
        self._last_flush_ms = 0
        self._opened = False
        self._next_segment = NextSegment(self.log, disk, self._runner)
        self._log_room = LogRoom(self.log, disk, self._runner)

    def _path(self, *parts: str) -> str:
        return os.path.join(self.settings.root, *parts)

    # --- opening and closing ----------------------------------------------------------------------------------

    def lock(self) -> None:
        """Makes the directory ours, or says who has it. Nothing in it may be read for use before that."""
        if self._lock is None:
            self.disk.makedirs(self.settings.root)
            self._lock = self.disk.lock_file(self._path("lock"))

    def open(self, is_known: Callable[[str], bool] = lambda topic: True) -> RecoveryReport:
        """Loads the files, repairs what a crash left, and starts to take writes.

        `is_known`: whether a topic has settings; what another broker deleted is not made anew from the log.
        """
        self.lock()
        try:
            report = self._load_and_recover(is_known)
        except BaseException:
            self._release()
            raise
        self._opened = True
        return report

    def _load_and_recover(self, is_known: Callable[[str], bool]) -> RecoveryReport:
        clean = not self.disk.exists(self._path("abort"))
        self.disk.makedirs(self.settings.log_directory)
        self.log.series.load()
        self.checkpoint = Checkpoint.load(self.disk, self._path("checkpoint"))
        self.mark = RecoveryMark.load(self.disk, self._path(MARK_FILE))
        self._load_queues()
        report = recover(self, clean, is_known)
        self.mark.forget_behind(report.log_end)
        self.flush_note.open(report.log_end, self.checkpoint.physic_ms)
        self.log.start_at(report.log_end)
        self._shown_to = report.log_end
        self.log.store_ms = self.log.committed_ms = report.last_store_ms
        self.durability = Durability(
            self.log,
            self.disk,
            self._runner,
            self.settings.sync_flush_timeout_ms,
            self._flushed,
            self._flush_failed,
            continuous=self.settings.sync_flush,
        )
        self.disk.write_file(self._path("abort"), b"", sync=True)
        self.disk.fsync_dir(self.settings.root)
        self._last_flush_ms = self.clock()
        self._queue_sync.opened(self._last_flush_ms)
        return report

    @property
    def is_open(self) -> bool:
        return self._opened

    def close(self) -> None:
        """Orderly stop: everything on disk, the mark of a running broker removed. Safe to call twice."""
        if not self._opened:
            return
        self._opened = self._next_segment.wanted = False
        self._runner.close()
        clean = self.fault is None and not self.durability.failed
        try:
            self._finish_writes()
        except OSError as error:
            clean = False
            log.error("the store was not closed cleanly, the next start will recover it: %s", error)
        if clean and not self.dispatcher.behind:
            self.disk.unlink(self._path("abort"))
            self.disk.fsync_dir(self.settings.root)
        self._release()

    def _finish_writes(self) -> None:
        for base in self.log.series.bases[-2:]:
            self.disk.fdatasync(self.log.series.fd(base))
        self.flush_note.set(self.log.position)
        for _, staged in self._waiting_dispatch:
            self.dispatcher.dispatch(staged)
        self.dispatcher.all_arrived()
        self._waiting_dispatch.clear()
        self.dispatcher.write_out()
        self._queue_sync.finish()

    def _release(self) -> None:
        if self.index is not None:
            self.index.close()
        self._close_queues()
        self.flush_note.close()
        self.log.series.close()
        self._log_files.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def delete_topic(self, topic: str, log_end: int | None = None) -> None:
        """Forgets the queues of a topic and deletes their files; the log keeps the records until it is cleaned.

        `log_end`: where the log ended at that moment; a slave hears of it later.
        """
        self.mark.forget_topic(topic, self.log.position if log_end is None else log_end)
        for queue in self._remove_queues(topic):
            self.dispatcher.forget(queue)
            for _, staged in self._waiting_dispatch:
                staged.units.pop(queue, None)
        if self._opened:
            self.mark.save(self.disk, self._path(MARK_FILE))

    # --- appending --------------------------------------------------------------------------------------------

    @property
    def refusal(self) -> str:
        """Why no write is taken now, for the answer to the client; empty when writes are welcome."""
        return self.fault.reason if self.fault else ""

    def put(self, message: InnerMessage) -> PutResult:
        """Appends one message made inside the broker. OSError: nothing was stored."""
        try:
            position = self.stage_inner(message)
        except OSError as error:
            self.abandon_staged(error)
            raise
        queue_offset = self.queue(message.topic, message.queue_id).next_offset - 1
        end = self.commit_staged()
        return PutResult(position, queue_offset, end - position, self.log.store_ms)

    def stage_inner(self, message: InnerMessage) -> int:
        sys_flag = message.sys_flag
        if sys_flag & SysFlag.TX_MASK not in (SysFlag.TX_NONE, SysFlag.TX_COMMIT):
            # Records of these types have no place in a queue for whoever rebuilds it, Java or us.
            sys_flag &= ~SysFlag.TX_MASK
        return self.log.stage(
            self.queue(message.topic, message.queue_id),
            message.body,
            message.properties,
            sys_flag,
            message.flag,
            message.born_ms,
            message.born_host,
            message.reconsume_times,
            message.prepared_offset,
            message.tags_code,
            message.unique_key,
            message.keys,
            message.delay_ms,
        )

    def commit_staged(self) -> int:
        """Writes what was staged in the log; visible at once, or after the flush when acks mean flushed."""
        try:
            staged = self.log.commit()
        except OSError as error:
            self.abandon_staged(error)
            raise
        self.publish(staged)
        return self.log.position

    def publish(self, staged: Staged, end: int | None = None) -> None:
        """What the log has got, up to `end`, becomes visible: now, or when it is as safe as an ack says."""
        if self.settings.sync_flush:
            self._waiting_dispatch.append((self.log.position if end is None else end, staged))
            self.durability.kick()
            if end is not None:  # it may have been on the device before it could be shown
                self._show()
        elif self.copied_to is not None:
            self._waiting_dispatch.append((self.log.position, staged))
        else:
            try:
                self.dispatcher.dispatch(staged, alone=True)
            except OSError as error:
                self._write_failed(error)
            finally:  # whatever went wrong, nobody's answer is kept back
                self.dispatcher.all_arrived()
        if self.on_growth is not None:
            self.on_growth()

    def abandon_staged(self, error: OSError) -> None:
        """Staging or committing failed: nothing of it happened."""
        self._write_failed(error)
        try:
            self.log.roll_back()
        except OSError as worse:
            self.fault = Fault(
                f"half a message at the end of the log cannot be taken back ({worse}); restart the broker",
                False,
            )
            log.critical("%s", self.fault.reason)

    def when_durable(self, end: int, waiter: Waiter) -> None:
        """Under asynchronous flush an ack does not wait for the device; under double write it waits for a copy."""
        if self.copies is not None:
            waiter = self.copies.after(end, waiter)
        if self.settings.sync_flush:
            self.durability.when(end, self.clock(), waiter)
        else:
            waiter(Durable.YES)

    def _flushed(self, offset: int) -> None:
        self.flush_note.set(offset)
        self._show()
        if self.on_growth is not None:
            self.on_growth()

    def copied(self, offset: int) -> None:
        """Everybody who may become master holds the log up to there: readers may see it."""
        self.copied_to = offset
        self._show()

    def _show(self) -> None:
        """Makes visible what has come far enough: to the device, to the copies, or both."""
        visible = self.durability.offset if self.settings.sync_flush else self.log.position
        visible = visible if self.copied_to is None else min(visible, self.copied_to)
        waiting = self._waiting_dispatch
        count = 0
        try:
            for end, staged in waiting:
                if end > visible:
                    break
                count += 1
                self._shown_to = end
                try:
                    self.dispatcher.dispatch(staged)
                except OSError as error:
                    self._write_failed(error)
        finally:  # whatever went wrong, nobody's answer is kept back
            del waiting[:count]
            if count:
                self.dispatcher.all_arrived()

    # --- faults -----------------------------------------------------------------------------------------------

    def _write_failed(self, error: OSError) -> None:
        if self.fault is None:
            log.error("the store cannot write and refuses messages until it can again: %s", error)
        self.fault = self.fault or Fault(f"the store cannot write: {error.strerror or error}", heals=True)

    def _flush_failed(self, error: BaseException) -> None:
        log.critical(
            "flushing the log failed; the store is read-only until the broker is restarted: %s", error
        )
        self.fault = Fault(
            f"flushing the log failed ({error}); the broker is read-only until it is restarted", False
        )

    def refuse_writes(self, reason: str) -> None:
        """A watermark was passed, or the broker is shutting down."""
        if self.fault is None:
            self.fault = Fault(reason, heals=True)

    def try_to_heal(self) -> None:
        """Called while a fault that can heal is present and its cause may have gone."""
        if self.fault is None or not self.fault.heals:
            return
        try:
            self.dispatcher.write_out()
        except OSError:
            return
        log.warning("the store takes messages again")
        self.fault = None
        self.writes_begin()

    def writes_begin(self) -> None:
        """Writes are taken again. Whoever has something to complete does so now, before clients can write."""
        if self.fault is None:
            for complete in self.before_writes:
                complete()

    # --- what has to happen now and then ----------------------------------------------------------------------

    def tick(self) -> None:
        """Everything that is due, at once: for whoever has no timers. A broker has one for each rhythm."""
        self.write_queues()
        self.look()

    def look(self) -> None:
        """Every tenth of a second or so: flushes that are due, waiters that waited too long."""
        now = self.clock()
        self.durability.expire(now)
        self.cleaner.step()
        self.mark.note_border(self.log.position)
        self._log_room.look()
        if now - self._last_flush_ms >= self.settings.flush_interval_ms:
            self._last_flush_ms = now
            self.durability.kick()
            self._next_segment.prepare()
        self._queue_sync.tick(now)

    def write_queues(self) -> bool:
        """Brings what queues and index have in memory to their files; False when that is not possible now.

        Twice a second or so is enough: only programs that read the files wait for it.
        """
        try:
            self.dispatcher.write_out()
        except OSError as error:
            self._write_failed(error)
            return False
        return True

    def queues_end(self) -> int:
        """Up to where queues hold the log now: all of it, or what readers may see."""
        if self._waiting_dispatch:
            return self._shown_to
        return self.log.position if self.held_from is None else self.held_from

    # --- finding ----------------------------------------------------------------------------------------------

    def read_record(self, offset: int) -> bytes | None:
        return self.log.record(offset)

    def store_time_of(self, queue: ConsumeQueue, offset: int) -> int:
        unit = queue.unit(offset)
        if unit is None:
            return -1
        return self.store_time_at(unit[0])

    def store_time_at(self, position: int) -> int:
        return self.log.store_time_at(position)

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int) -> int:
        """The first message stored at or after this time; the end of the queue when there is none."""
        queue = self.find_queue(topic, queue_id)
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            if self.store_time_of(queue, middle) < time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def query_keys(self, topic: str, key: str, begin_ms: int, end_ms: int, max_num: int) -> list[int]:
        """Log offsets, newest first, whose key has this hash: the caller compares topic and key."""
        if self.index is None:
            return []
        self.dispatcher.drain_index()
        return self.index.query(topic, key, begin_ms, end_ms, max_num)

    def index_last(self) -> tuple[int, int]:
        return self.index.last() if self.index is not None else (0, 0)

    @property
    def min_phys_offset(self) -> int:
        return self.log.start

    @property
    def max_phys_offset(self) -> int:
        return self.log.position

    @property
    def dispatch_behind_bytes(self) -> int:
        return self.log.position - self._shown_to if self._waiting_dispatch else 0

    @property
    def flush_behind_bytes(self) -> int:
        return self.log.position - self.durability.offset

    def in_memory(self, position: int) -> bool:
        return self.log.position - position <= self.settings.in_memory_bytes

    def earliest_ms(self) -> int:
        return self.store_time_at(self.log.start) if self.log.position > self.log.start else -1

    def disk_ratio(self) -> float:
        return max(map(self.disk.disk_usage, {self.settings.root, self.settings.log_directory}))

    # --- cleaning and status ----------------------------------------------------------------------------------

    def when_cleanable(self, call: Callable[[], None]) -> None:
        """Calls when cleaning need not wait for what the queues have not on the device yet."""
        self._queue_sync.when_covered(self.queues_end(), call)

    def clean_expired(self, manual: bool) -> Cleaned:
        """Lets old log files go if it is time or asked for; what went."""
        return self.cleaner.run(manual)

    def clean_unused_topics(self, live: set[str]) -> list[str]:
        """Queues of topics that no longer exist."""
        unused = [topic for topic in self.topics() if topic not in live and not is_system_topic(topic)]
        for topic in unused:
            self.delete_topic(topic)
        return unused
