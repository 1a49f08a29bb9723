"""The format `orbitmq-store`: the same table straight from a store directory, without a broker.

    spark.read.format("orbitmq-store").option("subscribe", "orders").load("/var/lib/orbitmq/data")

The directory must be readable where the tasks run. It may belong to a running broker, to a stopped one, or be a copy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource

from orbitmq.spark.errors import BadOption
from orbitmq.spark.offsets import Named, Place, Where, parse_assignment
from orbitmq.spark.options import OptionReader, fails_when_too_new, places
from orbitmq.spark.schema import columns_of, ddl, parse_columns
from orbitmq.spark.source import filters_are_pushed
from orbitmq.spark.workers import settle
from orbitmq.wire.errors import WireError
from orbitmq.wire.subscription import split_tags

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader

FORMAT: Final = "orbitmq-store"

STORE_OPTIONS: Final[dict[str, str]] = {
    "path": "the storePathRootDir of a broker, usually given to load()",
    "subscribe": "topics, separated by commas; without it all but those of the system",
    "subscribePattern": "a regular expression for whole topic names",
    "assign": 'queues: {"topic": [0, 1]}',
    "startingOffsets": "earliest, or numbers as JSON",
    "endingOffsets": "latest, or numbers as JSON",
    "startingTimestamp": "ms since 1970 or ISO 8601 with a zone",
    "endingTimestamp": "the same, as the end",
    "startingOffsetsByTimestamp": "a time in ms for each queue, as JSON",
    "endingOffsetsByTimestamp": "the same, as the end",
    "startingOffsetsByTimestampStrategy": "latest or error: what to do where nothing is that new",
    "failOnDataLoss": "true: fail instead of warning when messages are damaged",
    "checkCrc": "true: compare the checksum of every body",
    "cores": "how many tasks to plan for; those of the driver's machine, which on a cluster are not all",
    "minPartitions": "cut the work into at least so many tasks",
    "maxRecordsPerPartition": "no task reads more messages than this",
    "tags": "only messages with one of these tags: A || B",
    "columns": "the columns to read, separated by commas",
    "broker": "what to show in the column broker, null without it",
    "logFileBytes": "mappedFileSizeCommitLog, if it cannot be seen from the files",
}


@dataclass(frozen=True)
class StoreOptions:
    path: str
    topics: tuple[str, ...]
    pattern: str | None
    assigned: tuple[Named, ...]
    start: Place
    end: Place
    fail_when_too_new: bool
    fail_on_data_loss: bool
    check_crc: bool
    cores: int | None
    min_partitions: int | None
    max_records_per_partition: int | None
    tags: tuple[str, ...]
    broker: str | None
    log_file_bytes: int | None


def parse_store_options(given: Mapping[str, str]) -> StoreOptions:
    options = OptionReader(given, STORE_OPTIONS)
    path = options.text("path")
    if not path:
        raise BadOption("path", "it is not said which store to read", hint='use .load("directory")')
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if options.text(name)]
    if len(ways) > 1:
        raise BadOption(ways[1], f"{ways[0]} is given as well", hint="give one of them")
    names = tuple(name.strip() for name in (options.text("subscribe") or "").split(",") if name.strip())
    assigned = options.text("assign")
    try:
        tags = tuple(split_tags(options.text("tags") or "*"))
    except WireError as error:
        raise BadOption("tags", str(error)) from error
    pattern = options.text("subscribePattern") or None
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise BadOption("subscribePattern", f"{pattern!r} is no regular expression: {error}") from error
    start, end = places(options, streaming=False)
    if start.where is Where.COMMITTED:
        raise BadOption(
            "startingOffsets", "a store alone knows no group's progress", hint="use earliest or numbers"
        )
    return StoreOptions(
        path=os.path.abspath(os.path.expanduser(path)),
        topics=names,
        pattern=pattern,
        assigned=parse_assignment("assign", assigned) if assigned else (),
        start=start,
        end=end,
        fail_when_too_new=fails_when_too_new(options),
        fail_on_data_loss=options.flag("failOnDataLoss", False),
        check_crc=options.flag("checkCrc", False),
        cores=options.number("cores"),
        min_partitions=options.number("minPartitions"),
        max_records_per_partition=options.number("maxRecordsPerPartition"),
        tags=tags,
        broker=options.text("broker") or None,
        log_file_bytes=options.number("logFileBytes"),
    )


class StoreSource(DataSource):
    """Found by Spark through the package `pyspark_orbitmq_store`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        settle()
        return ddl(parse_columns(OptionReader(self.options, STORE_OPTIONS).text("columns") or ""))

    def reader(self, schema: Any) -> DataSourceReader:
        from orbitmq.spark.placed_bodies import BODY, PLACED, BodyForm, asked_form
        from orbitmq.spark.store_batch import PushingStoreReader, StoreReader

        settle()
        kind = PushingStoreReader if filters_are_pushed() else StoreReader
        options = parse_store_options(self.options)
        form = asked_form(schema, options.path)
        columns = columns_of(schema, None if form is BodyForm.BYTES else {BODY: PLACED})
        return kind(options, columns, form)
