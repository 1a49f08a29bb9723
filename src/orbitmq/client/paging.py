"""A page: the answer to one pull, asked for large and taken apart without decoding the messages in it.

Brokers of OrbitMQ fill a page up to `pageBytes`; others do not know the field and answer with their own 32 messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orbitmq.client.cluster import Cluster
from orbitmq.client.core.pages import cut
from orbitmq.client.message import Message
from orbitmq.wire.codes import PullFlag, RequestCode, ResponseCode
from orbitmq.wire.command import request
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.topics import TOOLS_GROUP

PAGE_MESSAGES: Final = 4096
PAGE_BYTES: Final = 1024 * 1024
# How much longer than the broker holds a pull its answer may take.
GRACE_S: Final = 10.0

_ACCEPTED: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages of a topic are wanted: by tags (`A || B`, `*` for all) or by an SQL92 condition."""

    expression: str = "*"
    is_sql: bool = False

    @property
    def tags(self) -> frozenset[str]:
        """The tags to compare here as well, because brokers only compare hashes; empty: no comparison."""
        if self.is_sql:
            return frozenset()
        parts = (part.strip() for part in self.expression.split("||"))
        return frozenset(tag for tag in parts if tag and tag != "*")


@dataclass(frozen=True, slots=True)
class Page:
    """What one pull gave: the messages, where to go on, and what the queue holds."""

    messages: list[Message]
    next_offset: int
    min_offset: int
    max_offset: int
    moved: bool


async def pull_page(
    cluster: Cluster,
    addr: str,
    queue: MessageQueue,
    offset: int,
    wanted: Filter,
    *,
    page_bytes: int = PAGE_BYTES,
    hold_s: float = 0.0,
) -> Page:
    """One pull without a group. With `hold_s` the broker waits that long for a first message."""
    hold_ms = round(hold_s * 1000)
    fields = {
        "consumerGroup": TOOLS_GROUP,
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(PAGE_MESSAGES),
        "sysFlag": str(PullFlag.SUBSCRIPTION | (PullFlag.SUSPEND if hold_ms else 0)),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(hold_ms),
        "subscription": wanted.expression or "*",
        "subVersion": "0",
        "expressionType": "SQL92" if wanted.is_sql else "TAG",
        "bname": queue.broker_name,
        "pageBytes": str(page_bytes),
    }
    response = await cluster.request(
        addr,
        request(RequestCode.PULL_MESSAGE, fields),
        accept=_ACCEPTED,
        timeout_s=cluster.timeout_s + hold_s + (GRACE_S if hold_s else 0.0),
    )
    messages: list[Message] = []
    if response.code == ResponseCode.SUCCESS and response.body:
        messages = split_page(bytes(response.body), queue.broker_name)
        if tags := wanted.tags:
            messages = [message for message in messages if message.tag in tags]
    return Page(
        messages,
        int(response.ext["nextBeginOffset"]),
        int(response.ext["minOffset"]),
        int(response.ext["maxOffset"]),
        response.code == ResponseCode.PULL_OFFSET_MOVED,
    )


def split_page(body: bytes, broker: str) -> list[Message]:
    """The records of a page as messages that are decoded when they are looked at."""
    return [Message(body, start, broker, None) for start in cut(body).starts]
