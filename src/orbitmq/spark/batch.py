"""A batch read of topics: planned on the driver, done by tasks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from orbitmq.client.errors import OrbitMQError
from orbitmq.spark.brokers import Brokers
from orbitmq.spark.errors import explained
from orbitmq.spark.filters import Narrow, narrow
from orbitmq.spark.options import ReadOptions
from orbitmq.spark.places import bounds_of, find_queues, offsets_at, patiently
from orbitmq.spark.planning import Task, plan
from orbitmq.spark.pull_client import QueueSlice
from orbitmq.spark.starting import check_order, resolve_place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter


class SlicePartition(InputPartition):
    """One task's share of the queues."""

    def __init__(self, slices: Task, tags: str | None = None) -> None:
        super().__init__(None)
        self.slices = slices
        self.tags = tags


class OrbitReader(DataSourceReader):
    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._narrow = Narrow()

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        tags = self._narrow.tag_expression if options.tags.strip() == "*" else None
        try:
            with Brokers(options.namesrv, options.request_timeout_s) as brokers:
                slices = patiently(
                    lambda: batch_slices(brokers, options, self._narrow), options.retry_timeout_s
                )
        except OrbitMQError as error:
            raise explained(error) from error
        tasks = plan(
            slices,
            cores=options.cores or os.cpu_count() or 1,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )
        return [SlicePartition(task, tags) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SlicePartition):  # Spark's own, when there is nothing to read
            return iter(())
        from orbitmq.spark.reading import read_slices
        from orbitmq.spark.workers import settle

        settle()
        return read_slices(self._options, self._columns, partition.slices, partition.tags)


class PushingReader(OrbitReader):
    """Reads less where Spark's conditions allow it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._narrow = narrow(filters)
        return filters


def batch_slices(brokers: Brokers, options: ReadOptions, bounds: Narrow) -> list[QueueSlice]:
    """What a batch reads of each queue, in the order of queues."""
    queues = find_queues(brokers, options)
    limits = bounds_of(brokers, queues)
    start = resolve_place(brokers, options, options.start, limits)
    end = resolve_place(brokers, options, options.end, limits)
    check_order(options, start, end)
    slices = [
        bounds.cut(QueueSlice(queue, start[queue], end[queue]))
        for queue in queues
        if bounds.wants(queue) and start[queue] < end[queue]
    ]
    kept = {piece.queue: limits[piece.queue] for piece in slices if piece.start < piece.end}
    if bounds.from_ms is not None:
        first = offsets_at(brokers, dict.fromkeys(kept, max(bounds.from_ms, 0)), kept)
        slices = [piece._replace(start=max(piece.start, first.get(piece.queue, 0))) for piece in slices]
    if bounds.before_ms is not None:
        last = offsets_at(brokers, dict.fromkeys(kept, max(bounds.before_ms, 0)), kept)
        slices = [piece._replace(end=min(piece.end, last.get(piece.queue, piece.end))) for piece in slices]
    return [piece for piece in slices if piece.start < piece.end]
