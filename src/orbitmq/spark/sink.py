"""`df.write.format("orbitmq")` and `df.writeStream.format("orbitmq")`.

Tasks send their rows and report handles (`sink_send`); the driver decides and makes them visible (`sink_commit`).
Spark runs `write` in worker processes and `commit` in a process of its own, each time a fresh one, so nothing is
remembered between the calls but what is pickled and what brokers keep.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError
from orbitmq.spark.errors import BadOption, SourceError, explained
from orbitmq.spark.sink_commit import Committer, Outcome, TaskResult
from orbitmq.spark.sink_options import SinkOptions, parse_sink_options, producer_group
from orbitmq.spark.sink_rows import check_schema
from orbitmq.spark.sink_send import TaskSender

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

T = TypeVar("T")
log = logging.getLogger("orbitmq.spark")

PLAIN_GROUP: Final = "SPARK_SINK"
QUERY_ID: Final = "sql.streaming.queryId"


@dataclass
class Sent(WriterCommitMessage):
    """What a task tells the driver."""

    result: TaskResult


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    if overwrite:
        raise BadOption(
            "mode",
            "a topic cannot be overwritten",
            hint='write with .mode("append"), or delete the topic first',
        )
    chosen = parse_sink_options(options)
    if chosen.app_id is not None and chosen.version is None:
        raise BadOption(
            "txnAppId", "it is given without 'txnVersion'", hint="number the writes of a job: 1, 2, …"
        )
    check_schema(schema, chosen.topic)
    return BatchWriter(chosen)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    if overwrite:
        raise BadOption(
            "outputMode",
            "complete would send the whole table again with every batch, and a topic cannot be overwritten",
            hint='write with .outputMode("append") or "update"',
        )
    chosen = parse_sink_options(options)
    if chosen.version is not None:
        raise BadOption("txnVersion", "in a stream the batch id is the version", hint="leave it out")
    check_schema(schema, chosen.topic)
    return StreamWriter(chosen)


class BatchWriter(DataSourceArrowWriter):
    """One job is one batch; with `txnAppId` and `txnVersion` a job that is run again writes nothing twice."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._app_id = options.app_id or uuid.uuid4().hex
        self._version = 0 if options.version is None else options.version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return _write(self._options, self._app_id, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        results = _reported(messages)
        if not self._options.transactional or not results:
            return

        async def work(cluster: Cluster) -> Outcome:
            committer = Committer(cluster, self._options, self._app_id)
            if self._options.app_id is None:
                return await committer.commit_unmarked(results)
            return await committer.commit(self._version, results)

        _run(self._options, work)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _abort(self._options, self._app_id, messages, anonymous=self._options.app_id is None)


class StreamWriter(DataSourceStreamArrowWriter):
    """Every micro-batch is a batch of the application, which is the query unless `txnAppId` says otherwise."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return _write(self._options, self._options.app_id or _query_id(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        results = _reported(messages)
        if self._options.transactional and results:
            app_id = results[0].app_id
            _run(
                self._options,
                lambda cluster: Committer(cluster, self._options, app_id).commit(batchId, results),
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        results = _reported(messages)
        if results:
            _abort(self._options, results[0].app_id, messages, anonymous=False)


def _write(options: SinkOptions, app_id: str, batches: Iterator[pa.RecordBatch]) -> Sent:
    group = producer_group(app_id) if options.transactional else PLAIN_GROUP
    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0

    async def work(cluster: Cluster) -> TaskSender:
        sender = TaskSender(cluster, options, group, task)
        for batch in batches:
            # Nothing is under way while Spark makes the next batch: no answer waits longer than its time-out.
            await sender.send_table(batch)
        return sender

    sender = _run(options, work)
    return Sent(TaskResult(app_id, sender.rows, sender.handles.packed(), sender.ordered))


def _abort(
    options: SinkOptions, app_id: str, messages: Sequence[WriterCommitMessage | None], *, anonymous: bool
) -> None:
    if not options.transactional:
        return
    results = [message.result if isinstance(message, Sent) else None for message in messages]
    try:
        _run(options, lambda cluster: Committer(cluster, options, app_id).abort(results, anonymous=anonymous))
    except SourceError as error:
        # Spark is about to report why the job failed; what is left over is invisible and expires.
        log.warning("half messages of a failed job are not rolled back: %s", error)


def _reported(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    return [message.result for message in messages if isinstance(message, Sent)]


def _query_id() -> str:
    context = TaskContext.get()
    query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
    if not query_id:
        raise BadOption(
            "txnAppId",
            "Spark does not tell which query this is",
            hint="name the query yourself with this option",
        )
    return query_id


def _run(options: SinkOptions, work: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
    async def body() -> T:
        async with Cluster(options.namesrv, timeout_s=options.request_timeout_s) as cluster:
            try:
                return await work(cluster)
            except OrbitMQError as error:
                raise explained(error) from error

    return asyncio.run(body())
