"""What `orbitmq message half` shows: the transactions that are open."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from orbitmq.broker.redraft import message_at
from orbitmq.broker.transaction.records import real_queue
from orbitmq.wire import fastjson
from orbitmq.wire.batch import MAX_HALF_BATCH
from orbitmq.wire.header_fields import Header, Int32, Int64
from orbitmq.wire.headers import parse

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.broker.transaction.ledger import Half, Ledger
    from orbitmq.wire.command import Command

MAX_LISTED: Final = 1000
# A page looks at no more than this many, so that a rare group does not hold the loop.
MAX_LOOKED_AT: Final = 10_000
# What is listed is read from the log, and many messages in one half message make it large.
MAX_READ_BYTES: Final = 8 << 20
HALF_BATCH_FIELD: Final = "halfBatch"
"""Says to clients how many messages may come in one half message; a broker that knows of none leaves it out."""


class ListHalvesHeader(Header, kw_only=True):
    """LIST_HALF_MESSAGES; from_offset is where the page begins, an offset of the half topic."""

    producer_group: str | None = None
    topic: str | None = None
    max_num: Int32 = 100
    from_offset: Int64 = 0


def list_halves(broker: Broker, ledger: Ledger, command: Command) -> Command:
    header = parse(ListHalvesHeader, command.ext, command.code)
    limit = max(1, min(header.max_num, MAX_LISTED))
    rows: list[dict[str, object]] = []
    next_offset = -1
    looked_at = read_bytes = 0
    for offset in islice((o for o in ledger.open if o >= header.from_offset), MAX_LOOKED_AT + 1):
        looked_at += 1
        if len(rows) == limit or looked_at > MAX_LOOKED_AT or read_bytes > MAX_READ_BYTES:
            next_offset = offset
            break
        half = ledger.open[offset]
        if header.producer_group and half.group != header.producer_group:
            continue
        read_bytes += half.body_bytes
        row = _row(broker, half)
        if row is not None and (not header.topic or row["topic"] == header.topic):
            rows.append(row)
    body = {
        "halfMessages": rows,
        "nextOffset": next_offset,
        "open": len(ledger.open),
        "transactionCheckInterval": broker.config.transaction_check_interval,
        "transactionCheckMax": broker.config.transaction_check_max,
        "transactionTimeOut": broker.config.transaction_time_out,
    }
    return command.reply(body=fastjson.dumps(body), ext={HALF_BATCH_FIELD: str(MAX_HALF_BATCH)})


def _row(broker: Broker, half: Half) -> dict[str, object] | None:
    message = message_at(broker.store, half.log_offset)
    if message is None:
        return None
    topic, queue_id = real_queue(message) or ("", -1)
    own_ms = half.immunity_ms
    return {
        "bodySize": len(message.body),
        "bornHost": message.born_host,
        "bornTimestamp": message.born_ms,
        "checkTimes": half.checks,
        "immunityTime": own_ms if own_ms is not None else broker.config.transaction_time_out,
        "keys": message.keys or "",
        "msgId": message.msg_id,
        "offsetMsgId": message.offset_msg_id,
        "producerGroup": half.group,
        "producersOnline": sum(not c.conn.closed for c in broker.clients.producer_group(half.group)),
        "queueId": queue_id,
        "queueOffset": half.queue_offset,
        "storeTimestamp": message.store_ms,
        "tags": message.tags or "",
        "topic": topic,
    }
