"""The plain twin of the columnar decoder: one message, one dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from orbitmq.spark.schema import ALL_COLUMNS
from orbitmq.wire.message import Message, decode_records

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(ms: int) -> datetime | None:
    try:
        return EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None


def plain_row(message: Message, topic: str | None = None, broker: str | None = None) -> dict[str, Any]:
    return {
        "topic": topic if topic is not None else message.topic,
        "broker": broker,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "body": message.decoded_body(),
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "born_time": moment(message.born_ms),
        "store_time": moment(message.store_ms),
        "born_host": message.born_host,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "sys_flag": message.sys_flag,
    }


def plain_rows(
    page: bytes, columns: Sequence[str] = ALL_COLUMNS, topic: str | None = None, broker: str | None = None
) -> list[dict[str, Any]]:
    rows = [plain_row(message, topic, broker) for message in decode_records(page)]
    return [{name: row[name] for name in columns} for row in rows]


def batch_rows(batch: Any) -> list[dict[str, Any]]:
    """A record batch in the same form."""
    rows: list[dict[str, Any]] = batch.to_pylist()
    for row in rows:
        if "properties" in row:
            assert len(dict(row["properties"])) == len(row["properties"]), "a name is there twice"
            row["properties"] = dict(row["properties"])
    return rows
