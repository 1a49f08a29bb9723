"""Topics as streams. Spark keeps the offsets in its checkpoint; a batch that is run again reads the same messages.

The stream reader lives in one long process beside the driver, which asks the brokers how far their queues reach. A
queue that appears later is first noted at its beginning and read from the next batch on, so that every batch is fully
described by its two offsets.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from orbitmq.client.errors import OrbitMQError
from orbitmq.spark.batch import SlicePartition
from orbitmq.spark.brokers import Brokers
from orbitmq.spark.errors import BrokerLost, DataLost, SourceError, explained
from orbitmq.spark.offsets import Offsets, end_to_json, from_json, start_of, to_json
from orbitmq.spark.options import ReadOptions
from orbitmq.spark.places import Bounds, bounds_of, commit, find_queues, mean_sizes, patiently
from orbitmq.spark.planning import limit_bytes, limit_rows, plan, slices_between
from orbitmq.spark.starting import resolve_place, within
from orbitmq.spark.subscription import is_subscribed
from orbitmq.wire.fastjson import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("orbitmq.spark")

QUEUES_AGE_S: Final = 5.0
"""How long a list of queues is good for: a new queue is found within this time."""


class OrbitStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._brokers: Brokers | None = None
        self._queues: list[MessageQueue] = []
        self._queues_since = float("-inf")
        self._target: dict[MessageQueue, Bounds] | None = None
        self._not_reached: list[SourceError] = []
        """Of brokers that a run which is to end could not ask, why."""
        self._seen: dict[MessageQueue, Bounds] = {}
        self._reported: Offsets = {}
        self._away: set[str] = set()
        self._last_batch_s = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a copy, and connections stay where they are.
        return {**self.__dict__, "_brokers": None}

    # --- called by Spark --------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        try:
            return to_json(patiently(self._initial, self._options.retry_timeout_s))
        except OrbitMQError as error:
            raise explained(error) from error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = from_json(start)
        try:
            self._report(begin)  # Spark asks only after everything before it is done
            end = self._available(begin)
            end = self._admitted(begin, end, limit)
            if end == begin:
                self._tell_not_reached()
        except OrbitMQError as error:
            raise explained(error) from error
        if end != begin:
            self._last_batch_s = time.monotonic()
        return end_to_json(start, end)

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_rows_per_trigger is not None:
            return ReadMaxRows(options.max_rows_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_rows_per_trigger is not None:
            return ReadMinRows(options.min_rows_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        try:
            self._target = self._reach({})
        except OrbitMQError as error:
            raise explained(error) from error

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_json({queue: limits.end for queue, limits in self._seen.items()}) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options = self._options
        tasks = plan(
            slices_between(from_json(start_of(start, end)), from_json(end)),
            cores=options.cores or os.cpu_count() or 1,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )
        return [SlicePartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from orbitmq.spark.reading import read_slices
        from orbitmq.spark.workers import settle

        settle()
        slices = partition.slices if isinstance(partition, SlicePartition) else ()
        return read_slices(self._options, self._columns, slices)

    def commit(self, end: dict[str, Any]) -> None:
        self._report(from_json(end))

    def stop(self) -> None:
        if self._brokers is not None:
            self._brokers.close()
            self._brokers = None

    # --- what is there ----------------------------------------------------------------------------------------

    def _connected(self) -> Brokers:
        if self._brokers is None:
            self._brokers = Brokers(self._options.namesrv, self._options.request_timeout_s)
        return self._brokers

    def _initial(self) -> Offsets:
        brokers, options = self._connected(), self._options
        queues = find_queues(brokers, options, may_be_none=options.pattern is not None)
        return resolve_place(brokers, options, options.start, bounds_of(brokers, queues))

    def _look(self, known: Offsets) -> dict[MessageQueue, Bounds]:
        """How far every queue reaches that can be asked now."""
        brokers = self._connected()
        now = time.monotonic()
        if now - self._queues_since >= QUEUES_AGE_S or self._away:
            try:
                self._queues = find_queues(brokers, self._options, may_be_none=True)
                self._queues_since = now
                self._ask_again_for_routes(known, self._queues)
            except SourceError as error:
                # A topic whose only broker is away has no route: it may come back, and nothing is lost meanwhile.
                self._tell_away("routes", error)
        away: set[str] = set()

        def lost(error: SourceError) -> None:
            away.add(str(error))
            self._tell_away(str(error), error)

        self._seen = bounds_of(brokers, self._with_known(self._queues, known), on_loss=lost)
        self._away &= away | {"routes"}
        return self._seen

    def _with_known(self, queues: Iterable[MessageQueue], known: Offsets) -> list[MessageQueue]:
        """Also those that the name servers do not tell any more, because their broker is away or lost them."""
        return sorted({*queues, *(queue for queue in known if is_subscribed(self._options, queue.topic))})

    def _ask_again_for_routes(self, known: Offsets, found: Iterable[MessageQueue]) -> None:
        """Of topics that are found no more, so that a topic which is gone is not asked for where it was."""
        for topic in {queue.topic for queue in known} - {queue.topic for queue in found}:
            if is_subscribed(self._options, topic):
                self._connected().find_route(topic, refresh=True)

    def _reach(self, known: Offsets) -> dict[MessageQueue, Bounds]:
        """The same for a run that is to end: it waits for brokers that are away, and notes those that stay away.

        Without any name server it fails: nothing could be read, and an end would look like success.
        """
        brokers, options = self._connected(), self._options
        found: dict[MessageQueue, Bounds] = {}

        def look() -> None:
            self._not_reached = []
            queues = find_queues(brokers, options, may_be_none=True)
            self._ask_again_for_routes(known, queues)
            found.update(bounds_of(brokers, self._with_known(queues, known), self._not_reached.append))
            if self._not_reached:
                raise self._not_reached[0]

        try:
            patiently(look, options.retry_timeout_s)
        except SourceError:
            if not self._not_reached:
                raise
        return found

    def _tell_not_reached(self) -> None:
        """All that could be read has been read; to end as if that were everything would be wrong."""
        if not self._not_reached:
            return
        why = "; ".join(dict.fromkeys(map(str, self._not_reached)))
        if self._options.fail_on_data_loss:
            raise BrokerLost(
                f"everything else is read, but {why}",
                hint="run it again when the broker is back; if it is gone for good, set failOnDataLoss to false",
            )
        log.warning("ended without: %s", why)
        self._not_reached = []

    def _tell_away(self, key: str, error: SourceError) -> None:
        if key not in self._away:
            log.warning("the stream goes on without: %s", error)
        self._away.add(key)

    def _available(self, begin: Offsets) -> Offsets:
        if self._target is None:
            found = self._look(begin)
        else:
            # What only the checkpoint knows could not be asked for before.
            if set(self._with_known((), begin)) - set(self._target) and not self._not_reached:
                self._target |= self._reach(begin)
            found = self._target
        end = dict(begin)
        for queue, limits in found.items():
            if queue not in begin:
                end[queue] = limits.first
            elif limits.end < begin[queue]:
                end[queue] = self._made_anew(queue, begin[queue], limits)
            else:
                within(self._options, queue, begin[queue], limits)
                end[queue] = limits.end
        return end

    def _made_anew(self, queue: MessageQueue, begin: int, limits: Bounds) -> int:
        if limits.from_slave:
            return begin  # it has not copied everything yet
        why = f"the queue ends at {limits.end} now: the broker lost messages, or the topic was deleted and made anew"
        lost = DataLost(queue.topic, queue.broker_name, queue.queue_id, limits.end, begin, why)
        if self._options.fail_on_data_loss:
            raise lost
        log.warning("reading the queue from its beginning: %s", lost)
        return limits.end

    # --- admission and progress -------------------------------------------------------------------------------

    def _admitted(self, begin: Offsets, end: Offsets, limit: ReadLimit) -> Offsets:
        options = self._options
        if isinstance(limit, ReadAllAvailable):
            return end
        waiting = sum(max(end[queue] - begin.get(queue, end[queue]), 0) for queue in end)
        least = options.min_rows_per_trigger
        waited_s = time.monotonic() - self._last_batch_s
        if (
            least is not None
            and self._target is None
            and waiting < least
            and waited_s < options.max_trigger_delay_s
        ):
            return begin
        if options.max_rows_per_trigger is not None:
            end = limit_rows(begin, end, options.max_rows_per_trigger)
        if options.max_bytes_per_trigger is not None:
            starts = {queue: begin[queue] for queue in begin if end.get(queue, 0) > begin[queue]}
            sizes = patiently(lambda: mean_sizes(self._connected(), starts), options.retry_timeout_s)
            end = limit_bytes(begin, end, sizes, options.max_bytes_per_trigger)
        return end

    def _report(self, done: Offsets) -> None:
        """Lag tools see the stream as a consumer group. Failing is no harm: the checkpoint is the truth."""
        group = self._options.group
        news = {queue: offset for queue, offset in done.items() if self._reported.get(queue) != offset}
        if not group or not news:
            return
        try:
            commit(self._connected(), group, news)
        except OrbitMQError as error:
            log.warning("the progress of group %s was not reported: %s", group, error)
            return
        self._reported.update(news)
