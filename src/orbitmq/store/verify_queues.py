"""Check consume queues against the log, from both sides.

Each queued record must have its unit (asked while the log is walked), and each unit must have its record
(asked afterwards, only in queues where the counts differ).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container
from struct import Struct

from orbitmq.store.log_scan import ScannedRecord
from orbitmq.store.settings import DEFAULT_DELAY_LEVELS_MS
from orbitmq.store.store_files import CONSUME_QUEUE, LogReader, StoreFiles, segment_path
from orbitmq.store.verify_report import REBUILD, QueueSummary, VerifyReport
from orbitmq.wire.topics import LMQ_PREFIX, SCHEDULE_TOPIC

UNIT = Struct(">qiq")
UNIT_BYTES = UNIT.size
FILLER = (0, 0x7FFFFFFF, 0)
NO_UNIT = (0, 0, 0)

_INNER_BATCH = 0x80
# Codes below are addresses of ext units, which keep the tag's hash elsewhere.
_MAX_EXT_ADDRESS = -0x80000001

Unit = tuple[int, int, int]


class QueueUnits:
    """The files of one queue."""

    def __init__(self, files: StoreFiles, topic: str, queue_id: int, file_bytes: int) -> None:
        self._files = files
        self.topic = topic
        self.queue_id = queue_id
        self.directory = f"{CONSUME_QUEUE}/{topic}/{queue_id}"
        self.file_bytes = file_bytes
        self.bases = files.bases(self.directory)
        self._known = set(self.bases)
        self.first = self.bases[0] // UNIT_BYTES if self.bases else 0
        self.end = self._find_end()

    def place(self, index: int) -> tuple[str, int]:
        """File and byte of a unit."""
        at = index * UNIT_BYTES
        return segment_path(self.directory, at - at % self.file_bytes), at % self.file_bytes

    def unit(self, index: int) -> Unit:
        base = index * UNIT_BYTES // self.file_bytes * self.file_bytes
        if base not in self._known:
            return NO_UNIT
        name, at = self.place(index)
        buf = self._files.shared_map(name)
        if at + UNIT_BYTES > len(buf):
            return NO_UNIT
        offset, size, code = UNIT.unpack_from(buf, at)
        return offset, size, code

    def _find_end(self) -> int:
        """One behind the last unit in front of the first place without one, as the broker would see it."""
        for base in reversed(self.bases):
            low, high = base // UNIT_BYTES, (base + self.file_bytes) // UNIT_BYTES
            for index in range(low, high):
                offset, size, _ = self.unit(index)
                if offset < 0 or size <= 0:
                    high = index
                    break
            if high > low or base == self.bases[0]:
                return high
        return 0


class QueueCheck:
    """`known_topics` are those the broker has a configuration for: their records need a queue."""

    def __init__(
        self, files: StoreFiles, file_bytes: int, report: VerifyReport, known_topics: Container[str]
    ) -> None:
        self._files = files
        self._report = report
        self._known_topics = known_topics
        self._queues: dict[tuple[str, int], QueueUnits] = {}
        self._summaries: dict[tuple[str, int], QueueSummary] = {}
        self._next: dict[tuple[str, int], int] = {}
        self._matched: Counter[tuple[str, int]] = Counter()
        self._without_queue: Counter[str] = Counter()
        # Units that name a later record: fine if that is the same place of a topic made anew.
        self._superseded: dict[tuple[str, int, int], tuple[int, Unit]] = {}
        self._told: set[tuple[str, int, int]] = set()
        self._delays: dict[int, dict[int, int]] = {}
        self._has_ext_units = files.exists("consumequeue_ext")
        for topic, queue_id in files.queue_directories():
            units = QueueUnits(files, topic, queue_id, file_bytes)
            self._queues[topic, queue_id] = units
            self._check_files(units)

    def _check_files(self, units: QueueUnits) -> None:
        for base in units.bases:
            name = segment_path(units.directory, base)
            actual = self._files.size(name)
            if actual != units.file_bytes:
                text = f"has {actual} bytes, the queue files of this store have {units.file_bytes}"
                self._report.error(name, None, text, REBUILD)
        for before, base in itertools.pairwise(units.bases):
            if base != before + units.file_bytes:
                text = f"the file(s) between {before} and {base} are missing"
                self._report.error(units.directory, None, text, REBUILD)

    def take(self, record: ScannedRecord) -> None:
        """Look at a record's unit. Records come in log order."""
        if not record.is_queued or record.sys_flag & _INNER_BATCH:
            return
        key = (record.topic, record.queue_id)
        self._count(key, record)
        units = self._queues.get(key)
        if units is None:
            self._without_queue[record.topic] += 1
            return
        self._check_order(key, record)
        unit = units.unit(record.queue_offset)
        if unit[0] == record.offset and unit[1] > 0:
            self._matched[key] += 1
            self._superseded.pop((*key, record.queue_offset), None)
            self._check_unit(units, record, unit)
        elif unit[0] > record.offset and unit[1] > 0:
            self._superseded[*key, record.queue_offset] = record.offset, unit
        else:
            self._missing(units, key, record.queue_offset, record.offset, unit)

    def _count(self, key: tuple[str, int], record: ScannedRecord) -> None:
        summary = self._summaries.get(key)
        if summary is None:
            summary = self._summaries[key] = QueueSummary(*key, first_ms=record.store_ms)
        summary.records += 1
        summary.record_bytes += record.size
        summary.last_ms = record.store_ms

    def _check_order(self, key: tuple[str, int], record: ScannedRecord) -> None:
        expected = self._next.get(key)
        self._next[key] = record.queue_offset + 1
        if expected is None or record.queue_offset == expected:
            return
        directory = self._queues[key].directory
        if record.queue_offset < expected:
            text = f"begins anew at queue offset {record.queue_offset} with the record at {record.offset}"
            self._report.info(
                directory, None, f"{text}: the topic was deleted and made again", kind="restart"
            )
            return
        self._report.error(
            directory,
            None,
            f"no record in the log for queue offsets {expected} to {record.queue_offset - 1} "
            f"(before the record at {record.offset})",
            "restore the damaged part of the log from a slave or a copy",
            kind="lost records",
        )

    def _check_unit(self, units: QueueUnits, record: ScannedRecord, unit: Unit) -> None:
        _, size, code = unit
        if size != record.size:
            text = f"gives the size of the record at {record.offset} as {size}, it is {record.size}"
            self._wrong(units, (record.topic, record.queue_id), record.queue_offset, text)
        elif record.topic == SCHEDULE_TOPIC and record.delay_level is not None:
            delays = self._delays.setdefault(record.queue_id, {})
            if len(delays) < 64:
                delays.setdefault(code - record.store_ms, record.queue_offset)
        elif code != record.tags_code and not (code <= _MAX_EXT_ADDRESS and self._has_ext_units):
            text = f"has tag hash {code}, the record at {record.offset} {record.tags_code}"
            self._wrong(units, (record.topic, record.queue_id), record.queue_offset, text)

    def _wrong(self, units: QueueUnits, key: tuple[str, int], index: int, text: str) -> None:
        name, at = units.place(index)
        self._told.add((*key, index))
        self._report.error(name, at, f"unit {index} {text}", REBUILD, kind=f"unit {units.directory}")

    def _missing(self, units: QueueUnits, key: tuple[str, int], index: int, offset: int, unit: Unit) -> None:
        if unit[1] > 0:
            self._wrong(units, key, index, f"points at {unit[0]}, its record is at {offset}")
        elif self._report.clean_stop or index < units.end:
            self._wrong(units, key, index, f"is missing, its record is at {offset}")
        else:
            text = f"unit {index} is not written yet; the next start adds it"
            self._report.info(units.directory, None, text, kind="not dispatched")

    def finish(self, log: LogReader) -> None:
        """The whole log was seen: look at the units no record asked for."""
        for (topic, queue_id, index), (offset, unit) in self._superseded.items():
            units = self._queues[topic, queue_id]
            self._missing(units, (topic, queue_id), index, offset, unit)
        for topic, count in sorted(self._without_queue.items()):
            text = f"{count} records of topic {topic} in the log have no queue"
            if topic in self._known_topics:
                self._report.error(f"{CONSUME_QUEUE}/{topic}", None, text, REBUILD)
            else:
                self._report.info(CONSUME_QUEUE, None, f"{text}: the topic was deleted")
        for key, units in self._queues.items():
            self._check_units(key, units, log)
        self._check_delays()

    def _check_units(self, key: tuple[str, int], units: QueueUnits, log: LogReader) -> None:
        first = units.first
        while first < units.end and self._is_before_log(units.unit(first)):
            first += 1
        summary = self._summaries.setdefault(key, QueueSummary(*key))
        summary.min_offset, summary.max_offset = first, units.end
        self._report.queues.append(summary)
        if units.end - first == self._matched[key]:
            return
        for index in range(first, units.end):
            unit = units.unit(index)
            if (*key, index) not in self._told and not self._is_before_log(unit):
                self._check_target(key, units, index, unit, log)

    def _is_before_log(self, unit: Unit) -> bool:
        """Its record went with an old log file, or it only fills the place in front of the first unit."""
        return unit[1] > 0 and (unit == FILLER or unit[0] < self._report.log_start)

    def _check_target(
        self, key: tuple[str, int], units: QueueUnits, index: int, unit: Unit, log: LogReader
    ) -> None:
        offset = unit[0]
        record = log.record(offset)
        if unit[1] <= 0:
            self._wrong(units, key, index, "is empty")
        elif self._report.damaged(offset) is not None:
            self._wrong(units, key, index, f"points at {offset}, where the log is damaged")
        elif offset >= self._report.log_end:
            if self._report.clean_stop:
                text = f"points at {offset}, the log ends at {self._report.log_end}"
                self._wrong(units, key, index, text)
        elif record is None:
            self._wrong(units, key, index, f"points at {offset}, where no record begins")
        elif key[0].startswith(LMQ_PREFIX) and record.topic != key[0]:
            # A light queue shares the record of its parent topic.
            return
        elif (record.topic, record.queue_id, record.queue_offset) != (*key, index) or not record.is_queued:
            text = f"points at {offset}, a record of {record.topic}/{record.queue_id}/{record.queue_offset}"
            self._wrong(units, key, index, text)

    def _check_delays(self) -> None:
        """Delivery times must fit one delay per level; which one is a setting, mostly left alone."""
        for queue_id, delays in self._delays.items():
            usual = DEFAULT_DELAY_LEVELS_MS[queue_id] if queue_id < len(DEFAULT_DELAY_LEVELS_MS) else None
            if len(delays) == 1 and (usual is None or usual in delays):
                continue
            units = self._queues[SCHEDULE_TOPIC, queue_id]
            for delay_ms, index in delays.items():
                if delay_ms != usual:
                    name, at = units.place(index)
                    text = (
                        f"unit {index} delivers {delay_ms} ms after storing, level {queue_id + 1} {usual} ms"
                    )
                    fix = "nothing, if messageDelayLevel was set to this; " + REBUILD
                    self._report.warning(name, at, text, fix, kind="delay")
