"""A read of a store directory: planned on the driver, done by tasks."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from orbitmq.spark.errors import BadOption
from orbitmq.spark.filters import Narrow, narrow
from orbitmq.spark.offsets import END, FIRST, Offsets, Place, Where, describe, nothing_that_new, resolve
from orbitmq.spark.placed_bodies import BodyForm
from orbitmq.spark.planning import plan
from orbitmq.spark.pull_client import QueueSlice
from orbitmq.spark.store_queues import StoreQueue, StoreView, first_stored_at, open_files
from orbitmq.spark.store_reader import StoreSettings, StoreSlice, cut, read_store
from orbitmq.spark.store_source import StoreOptions
from orbitmq.spark.store_view import view_store
from orbitmq.spark.subscription import is_internal, matching
from orbitmq.spark.workers import settle
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.java_hash import string_hash

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

log = logging.getLogger("orbitmq.spark")

# Of a store that was not stopped in good order, the end is read with a look at every checksum.
CHECKED_TAIL_BYTES: Final = 64 << 20


class StorePartition(InputPartition):
    """One task's share, and how to read it."""

    def __init__(self, settings: StoreSettings, slices: tuple[StoreSlice, ...]) -> None:
        super().__init__(None)
        self.settings = settings
        self.slices = slices


class StoreReader(DataSourceReader):
    def __init__(
        self, options: StoreOptions, columns: tuple[str, ...], form: BodyForm = BodyForm.BYTES
    ) -> None:
        self._options = options
        self._columns = columns
        self._form = form
        self._narrow = Narrow()

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        view = view_store(options.path, options.log_file_bytes)
        for text in view.damage:
            log.warning("%s: %s", options.path, text)
        queues = chosen_queues(view, options)
        tasks = plan(
            self._slices(view, queues),
            cores=options.cores or os.cpu_count() or 1,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )
        settings = self._settings(view)
        return [
            StorePartition(
                settings, tuple(cut(queues[piece.queue], piece.start, piece.end) for piece in task)
            )
            for task in tasks
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StorePartition):  # Spark's own, when there is nothing to read
            return iter(())
        settle()
        return read_store(partition.settings, partition.slices)

    def _settings(self, view: StoreView) -> StoreSettings:
        options = self._options
        pushed = self._narrow.tags if self._narrow.tag_expression and not options.tags else None
        tags = frozenset(options.tags or pushed or ())
        torn = not view.clean and not view.live
        tail = max(view.log_end - CHECKED_TAIL_BYTES, 0) if torn else None
        return StoreSettings(
            path=options.path,
            log_file_bytes=view.log_file_bytes,
            queue_file_bytes=view.queue_file_bytes,
            columns=self._columns,
            broker=options.broker,
            tags=tags,
            tag_codes=frozenset(map(string_hash, tags)) if tags else None,
            check_from=0 if options.check_crc else tail,
            fail_on_data_loss=options.fail_on_data_loss,
            body_form=self._form,
        )

    def _slices(self, view: StoreView, queues: Mapping[MessageQueue, StoreQueue]) -> list[QueueSlice]:
        options, bounds = self._options, self._narrow
        files = open_files(options.path)
        try:

            def at_time(queue: MessageQueue, ms: int) -> int:
                return first_stored_at(files, view, queues[queue], ms)

            start = _resolved(options.start, queues, at_time, options.fail_when_too_new)
            end = _resolved(options.end, queues, at_time)
            slices = []
            for queue in queues:
                piece = bounds.cut(QueueSlice(queue, start[queue], end[queue]))
                if not bounds.wants(queue) or piece.start >= piece.end:
                    continue
                if bounds.from_ms is not None:
                    piece = piece._replace(start=max(piece.start, at_time(queue, bounds.from_ms)))
                if bounds.before_ms is not None:
                    piece = piece._replace(end=min(piece.end, at_time(queue, bounds.before_ms)))
                slices.append(piece)
            return slices
        finally:
            files.close()


class PushingStoreReader(StoreReader):
    """Reads less where Spark's conditions allow it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._narrow = narrow(filters)
        return filters


def chosen_queues(view: StoreView, options: StoreOptions) -> dict[MessageQueue, StoreQueue]:
    """The queues that the options name, in one order."""
    there = {topic for topic, _ in view.queues}
    for topic in {*options.topics, *(name.topic for name in options.assigned)} - there:
        raise BadOption(
            "assign" if options.assigned else "subscribe",
            f"the store in {options.path} has no topic {topic!r}",
            hint=f"it has {', '.join(sorted(there)) or 'none'}",
        )
    if options.topics:
        there = set(options.topics)
    elif options.assigned:
        there = {name.topic for name in options.assigned}
    elif options.pattern is not None:
        there = set(matching(there, options.pattern))
    else:
        there = {topic for topic in there if not is_internal(topic)}
    named = {(name.topic, name.queue_id) for name in options.assigned}
    if unknown := sorted(named - set(view.queues)):
        raise BadOption("assign", f"the store has no queue {unknown[0][1]} of topic {unknown[0][0]!r}")
    return {
        MessageQueue(queue.topic, options.broker or "", queue.queue_id): queue
        for key, queue in sorted(view.queues.items())
        if queue.topic in there and (not named or key in named)
    }


def _resolved(
    place: Place,
    queues: Mapping[MessageQueue, StoreQueue],
    at_time: Callable[[MessageQueue, int], int],
    fail_when_too_new: bool = False,
) -> Offsets:
    if place.where is Where.EARLIEST:
        return {name: queue.first for name, queue in queues.items()}
    if place.where is Where.LATEST:
        return {name: queue.end for name, queue in queues.items()}
    one_for_all = place.where is Where.TIME
    numbers = dict.fromkeys(queues, place.time_ms) if one_for_all else resolve(place, queues)
    found: Offsets = {}
    if place.where in (Where.TIME, Where.TIMES):
        for name, ms in numbers.items():
            found[name] = at_time(name, ms)
            if fail_when_too_new and found[name] >= queues[name].end:
                raise nothing_that_new(place.option, name, ms)
        return found
    for name, number in numbers.items():
        queue = queues[name]
        found[name] = {FIRST: queue.first, END: queue.end}.get(number, number)
        if not queue.first <= found[name] <= queue.end:
            raise BadOption(
                place.option,
                f"{number} for {describe(name)} is out of range: the store has {queue.first} to {queue.end}",
                hint="use -2 for the first message and -1 for the end",
            )
    return found
