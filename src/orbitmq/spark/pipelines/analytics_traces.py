"""What clients reported about sending and handling messages: the traces of a trace topic as tables.

A trace tells when something happened by the clock of the client, and is stored a little later: clients report in
batches, and that a message was handled only once it was. So traces are read for longer than the range lasts, and what
happened behind its end is left out by its own time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orbitmq.spark.pipelines.utc import instant
from orbitmq.wire.errors import WireError
from orbitmq.wire.trace import PubTrace, SubAfterTrace, SubBeforeTrace, decode_traces

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

REPORTED_WITHIN: Final = timedelta(minutes=15)
"""After its event a trace is stored at the latest: as long as a client may take to handle a message."""

_SCHEMA: Final = (
    "kind string, at_ms bigint, client_group string, topic string, msg_id string, request_id string, "
    "cost_ms int, success boolean, retries int, client string"
)
_NAMES: Final = tuple(part.split()[0] for part in _SCHEMA.split(", "))
TRACE_SCHEMA: Final = _SCHEMA.replace("at_ms bigint", "at timestamp")


def read_traces(reports: DataFrame) -> DataFrame:
    """One row for each event in the messages of a trace topic."""
    from pyspark.sql import functions as F

    rows = reports.select("body", "born_host").mapInArrow(_trace_rows, _SCHEMA)
    # As numbers up to here: Arrow's timestamps would have to name the session's time zone.
    names = [F.timestamp_millis("at_ms").alias("at") if name == "at_ms" else F.col(name) for name in _NAMES]
    return rows.select(*names)


def _trace_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    types = (pa.string(), pa.int64(), *[pa.string()] * 4, pa.int32(), pa.bool_(), pa.int32(), pa.string())
    for batch in batches:
        rows: list[tuple[Any, ...]] = []
        for body, host in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            try:
                traces = decode_traces(body)
            except WireError:
                continue  # the report of a broken client does not spoil those of the others
            rows += [row for trace in traces if (row := _row(trace, host)) is not None]
        columns = list(zip(*rows, strict=True)) or [()] * len(types)
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, names=list(_NAMES))


def _row(trace: object, host: str | None) -> tuple[Any, ...] | None:
    client = host.rpartition(":")[0] if host else None
    if isinstance(trace, PubTrace):
        at_ms = trace.timestamp_ms
        return (
            "sent",
            at_ms,
            trace.group,
            trace.topic,
            trace.msg_id,
            None,
            trace.cost_ms,
            trace.success,
            0,
            trace.client_host or client,
        )
    if isinstance(trace, SubBeforeTrace):
        at_ms = trace.timestamp_ms
        return (
            "begun",
            at_ms,
            trace.group,
            None,
            trace.msg_id,
            trace.request_id,
            0,
            True,
            trace.retry_times,
            client,
        )
    if isinstance(trace, SubAfterTrace):
        moment = trace.timestamp_ms or None
        row = (trace.group, None, trace.msg_id, trace.request_id, trace.cost_ms, trace.success, 0, client)
        return "handled", moment, *row
    return None


class Traces(NamedTuple):
    """What happened in a range of time: messages sent, and attempts to handle one."""

    sent: DataFrame
    attempts: DataFrame


def in_range(traces: DataFrame, start: datetime, end: datetime, of_topic: Column) -> Traces:
    from pyspark.sql import functions as F

    sent = traces.where((F.col("kind") == "sent") & (F.col("at") >= instant(start)) & of_topic)
    # Not before `start` by the clock of a client that is slow: the broker says that the message came later.
    return Traces(sent.where(F.col("at") < instant(end)), _attempts(traces, end))


def _attempts(traces: DataFrame, end: datetime) -> DataFrame:
    """Each attempt to handle a message: when it began, who tried, how long it took and how it ended."""
    from pyspark.sql import functions as F

    begun = traces.where((F.col("kind") == "begun") & (F.col("at") < instant(end))).select(
        "request_id",
        "msg_id",
        F.col("client_group").alias("consumer_group"),
        F.col("at").alias("begun"),
        "retries",
        "client",
    )
    handled = traces.where("kind = 'handled'").select("request_id", "msg_id", "cost_ms", "success")
    return begun.join(handled, ["request_id", "msg_id"], "left")
