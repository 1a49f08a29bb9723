"""The stored forms of transactions: half, real and op messages, and the question to a producer."""

from __future__ import annotations

from typing import Final

from orbitmq.broker.redraft import redraft
from orbitmq.broker.send import Draft
from orbitmq.broker.transaction.ledger import Half, Outcome
from orbitmq.store.inner_message import InnerMessage
from orbitmq.wire import topics as names
from orbitmq.wire.checksum import crc32
from orbitmq.wire.codes import RequestCode, SysFlag
from orbitmq.wire.command import Command, request
from orbitmq.wire.headers import CheckTransactionHeader, to_ext
from orbitmq.wire.java_hash import string_hash
from orbitmq.wire.message import Message, encode_record
from orbitmq.wire.message_id import offset_msg_id
from orbitmq.wire.properties import MAX_PROPERTIES_BYTES, Prop, encode_properties

HALF_QUEUE: Final = 0
REMOVE_TAG: Final = "d"
_OP_PROPERTIES: Final = f"{Prop.WAIT}\x01true\x02{Prop.TAGS}\x01{REMOVE_TAG}".encode()
_OP_TAGS_CODE: Final = string_hash(REMOVE_TAG)
# A message older than this when it arrives has the wrong clock behind it, not a long journey.
_CREDIBLE_DELAY_MS: Final = 60_000
_NOT_A_NUMBER: Final = -1
NOT_KEPT_FLAGS: Final = SysFlag.TX_MASK | SysFlag.BORN_V6 | SysFlag.STORE_V6
OUTCOMES: Final = {SysFlag.TX_COMMIT: Outcome.COMMITTED, SysFlag.TX_ROLLBACK: Outcome.ROLLED_BACK}


# What is added to the properties while a half message is asked for; a longer text could not be written again.
LATER_PROPERTY_BYTES: Final = 128


def prepare(draft: Draft) -> bool:
    """Turns a draft into a half message; False when its properties leave no room for what is added later."""
    properties = draft.properties
    properties[Prop.TRANSACTION_PREPARED] = "true"
    properties[Prop.REAL_TOPIC] = draft.topic
    properties[Prop.REAL_QUEUE_ID] = str(draft.queue_id)
    properties.setdefault(Prop.WAIT, "true")
    draft.sys_flag &= ~SysFlag.TX_MASK
    draft.topic = names.HALF_TOPIC
    draft.queue_id = HALF_QUEUE
    characters = sum(len(name) + len(value) + 2 for name, value in properties.items())
    limit = MAX_PROPERTIES_BYTES - LATER_PROPERTY_BYTES
    return characters * 4 <= limit or len(encode_properties(properties)) <= limit


def half_of_draft(draft: Draft, log_offset: int, queue_offset: int, store_ms: int) -> Half:
    since_ms = since(draft.born_ms, store_ms)
    return _half(
        draft.properties, draft.born_ms, draft.born_host, draft.body, log_offset, queue_offset, since_ms
    )


def since(born_ms: int, store_ms: int) -> int:
    """From when on the age of a new half message counts."""
    return born_ms if 0 <= store_ms - born_ms <= _CREDIBLE_DELAY_MS else store_ms


def half_of(message: Message) -> Half:
    """The half message in a record of the half topic."""
    since_ms = min(message.born_ms, message.store_ms)
    again = Prop.TRANSACTION_CHECK_TIMES in message.properties
    if not again and message.store_ms - since_ms > _CREDIBLE_DELAY_MS:
        since_ms = message.store_ms
    return _half(
        message.properties,
        message.born_ms,
        message.born_host_bytes,
        message.body,
        message.physical_offset,
        message.queue_offset,
        since_ms,
    )


def _half(
    properties: dict[str, str],
    born_ms: int,
    born_host: bytes,
    body: bytes,
    log_offset: int,
    queue_offset: int,
    since_ms: int,
) -> Half:
    immunity_s = _number(properties.get(Prop.CHECK_IMMUNITY_SECONDS))
    first_offset = _number(properties.get(Prop.TRANSACTION_PREPARED_QUEUE_OFFSET))
    group = properties.get(Prop.PRODUCER_GROUP, "")
    who = identity(
        properties.get(Prop.UNIQ_KEY) or crc32(body),
        born_ms,
        born_host,
        group,
        properties.get(Prop.REAL_TOPIC),
        properties.get(Prop.REAL_QUEUE_ID),
    )
    return Half(
        queue_offset,
        log_offset,
        group,
        since_ms,
        None if immunity_s == _NOT_A_NUMBER else immunity_s * 1000,
        max(0, _number(properties.get(Prop.TRANSACTION_CHECK_TIMES))),
        None if first_offset == _NOT_A_NUMBER else first_offset,
        who,
        len(body),
    )


def identity(
    unique: str | int, born_ms: int, born_host: bytes, group: str, topic: str | None, queue_id: str | None
) -> int:
    """Equal for all records of one half message; a body's checksum stands in for an id that is not there."""
    return hash((unique, born_ms, born_host, group, topic, queue_id))


def _number(text: str | None) -> int:
    try:
        return int(text or "")
    except ValueError:
        return _NOT_A_NUMBER


def real_queue(message: Message) -> tuple[str, int] | None:
    """Where a half message goes when it is committed; None when its record does not tell."""
    topic = message.properties.get(Prop.REAL_TOPIC)
    queue_id = _number(message.properties.get(Prop.REAL_QUEUE_ID))
    return (topic, queue_id) if topic and queue_id >= 0 else None


def again(message: Message, *, checks: int | None = None, first_offset: int | None = None) -> Draft:
    """The half message once more, behind all others."""
    draft = redraft(message, names.HALF_TOPIC, HALF_QUEUE)
    if checks is not None:
        draft.properties[Prop.TRANSACTION_CHECK_TIMES] = str(checks)
    if first_offset is not None:
        draft.properties.setdefault(Prop.TRANSACTION_PREPARED_QUEUE_OFFSET, str(first_offset))
    return draft


def put_aside(message: Message) -> Draft:
    """A half message that nobody could decide, for people to look at."""
    return redraft(message, names.TRANS_CHECK_MAX_TIME_TOPIC, 0)


def real(message: Message, topic: str, queue_id: int, prepared_offset: int) -> InnerMessage:
    """The message as consumers get it. Its text keeps TRAN_MSG: consumers take the transaction id by it.

    `prepared_offset` is where in the log its half message is now, which need not be where the producer knows it: a
    start finds an interrupted commit by it, and reads nothing before the oldest open half message.

    The common commit: the stored text is used as it is, without taking it apart and putting it together again.
    """
    properties = message.properties
    tag, unique_key, keys = (properties.get(name) for name in (Prop.TAGS, Prop.UNIQ_KEY, Prop.KEYS))
    return InnerMessage(
        topic,
        queue_id,
        message.body,
        message.properties_raw,
        string_hash(tag) if tag else 0,
        unique_key.encode() if unique_key else None,
        keys.encode() if keys else None,
        message.sys_flag & ~NOT_KEPT_FLAGS | SysFlag.TX_COMMIT,
        message.flag,
        message.born_ms,
        message.born_host_bytes,
        message.reconsume_times,
        prepared_offset,
    )


def real_draft(message: Message, topic: str, queue_id: int, prepared_offset: int) -> Draft:
    """The same, open to be delayed."""
    draft = redraft(message, topic, queue_id)
    draft.sys_flag = draft.sys_flag & ~SysFlag.TX_MASK | SysFlag.TX_COMMIT
    draft.prepared_offset = prepared_offset
    return draft


def op(half_offset: int, now_ms: int, store_host: bytes) -> InnerMessage:
    """Says that the half message at this offset has ended."""
    return InnerMessage(
        names.OP_TOPIC,
        HALF_QUEUE,
        str(half_offset).encode(),
        _OP_PROPERTIES,
        tags_code=_OP_TAGS_CODE,
        born_ms=now_ms,
        born_host=store_host,
    )


def parse_op(message: Message) -> list[int] | None:
    """The half offsets an op message ends: "12", or "12,13," as 5.x writes them; None when it is not one."""
    if message.tags != REMOVE_TAG:
        return None
    try:
        return [int(part) for part in message.body.split(b",") if part]
    except ValueError:
        return None


def check_command(message: Message, half: Half, properties: dict[str, str], store_host: bytes) -> Command:
    """CHECK_TRANSACTION_STATE: the message as it was sent, with offsets and properties its half has now."""
    topic, queue_id = real_queue(message) or (message.topic, message.queue_id)
    unique_id = message.properties.get(Prop.UNIQ_KEY)
    header = CheckTransactionHeader(
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.log_offset,
        msg_id=unique_id,
        transaction_id=unique_id,
        offset_msg_id=offset_msg_id(store_host, half.log_offset),
    )
    body = encode_record(
        topic=topic,
        body=message.body,
        properties=encode_properties(properties),
        queue_id=queue_id,
        flag=message.flag,
        queue_offset=half.queue_offset,
        physical_offset=half.log_offset,
        sys_flag=message.sys_flag,
        born_ms=message.born_ms,
        born_host=message.born_host_bytes,
        store_ms=message.store_ms,
        store_host=message.store_host_bytes,
        reconsume_times=message.reconsume_times,
        prepared_offset=message.prepared_offset,
    )
    return request(RequestCode.CHECK_TRANSACTION_STATE, to_ext(header), body, oneway=True)
