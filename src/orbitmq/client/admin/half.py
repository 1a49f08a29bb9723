"""Transactions that are open: prepared messages whose producers have not said how they ended."""

from __future__ import annotations

import msgspec

from orbitmq.client.admin.targets import Missing, answered, ask_each, body_object, masters_of
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import OrbitMQError
from orbitmq.wire.codes import OrbitCode
from orbitmq.wire.command import request

PAGE: int = 500


class HalfMessage(msgspec.Struct, frozen=True, kw_only=True):
    broker: str
    topic: str
    queue_id: int
    msg_id: str
    offset_msg_id: str
    producer_group: str
    producers_online: int
    checks: int
    max_checks: int
    born_ms: int
    stored_ms: int
    first_check_ms: int
    """Not asked for before this time."""
    keys: list[str]
    tag: str | None
    size: int
    half_offset: int


class HalfMessages(msgspec.Struct, frozen=True, kw_only=True):
    """`open` counts all of them, listed or not; None when some broker did not answer."""

    open: int | None
    messages: list[HalfMessage]
    missing: list[Missing]


async def half_messages(
    cluster: Cluster,
    *,
    group: str | None = None,
    topic: str | None = None,
    max_num: int = 100,
    cluster_name: str | None = None,
    broker: str | None = None,
) -> HalfMessages:
    """The open transactions of all masters, of one cluster or of one broker, oldest first."""

    async def ask(name: str, addr: str) -> tuple[int, list[HalfMessage]]:
        return await _of_broker(cluster, name, addr, group, topic, max_num)

    targets = await masters_of(cluster, cluster_name=cluster_name, broker=broker)
    answers, missing, errors = await ask_each(targets, ask)
    answered(answers, errors)
    found = sorted(
        (message for _, messages in answers.values() for message in messages), key=lambda m: m.born_ms
    )
    total = None if missing else sum(count for count, _ in answers.values())
    return HalfMessages(open=total, messages=found[:max_num], missing=missing)


async def _of_broker(
    cluster: Cluster, name: str, addr: str, group: str | None, topic: str | None, max_num: int
) -> tuple[int, list[HalfMessage]]:
    found: list[HalfMessage] = []
    offset = 0
    while True:
        fields = {"maxNum": str(min(PAGE, max_num - len(found))), "fromOffset": str(offset)}
        if group:
            fields["producerGroup"] = group
        if topic:
            fields["topic"] = topic
        response = await cluster.request(addr, request(OrbitCode.LIST_HALF_MESSAGES, fields))
        data = body_object(response.body, "the list of open transactions")
        try:
            found += [_row(name, data, row) for row in data["halfMessages"]]
            offset, total = int(data["nextOffset"]), int(data["open"])
        except (KeyError, TypeError, ValueError) as error:
            raise OrbitMQError(
                f"the list of open transactions of {addr} is not understood: {error}",
                hint="check the version of the server",
            ) from error
        if offset < 0 or len(found) >= max_num:
            return total, found


def _row(broker: str, page: dict[str, object], row: dict[str, object]) -> HalfMessage:
    def number(source: dict[str, object], name: str) -> int:
        return int(str(source[name]))

    return HalfMessage(
        broker=broker,
        topic=str(row["topic"]),
        queue_id=number(row, "queueId"),
        msg_id=str(row["msgId"]),
        offset_msg_id=str(row["offsetMsgId"]),
        producer_group=str(row["producerGroup"]),
        producers_online=number(row, "producersOnline"),
        checks=number(row, "checkTimes"),
        max_checks=number(page, "transactionCheckMax"),
        born_ms=number(row, "bornTimestamp"),
        stored_ms=number(row, "storeTimestamp"),
        first_check_ms=number(row, "bornTimestamp") + number(row, "immunityTime"),
        keys=str(row["keys"]).split(),
        tag=str(row["tags"]) or None,
        size=number(row, "bodySize"),
        half_offset=number(row, "queueOffset"),
    )
