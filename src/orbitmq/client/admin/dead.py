"""Dead letters: what a group could not handle, why, and finding them again."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import msgspec

from orbitmq.client.admin.messages import FOREVER_MS, message_by_offset_id, messages_by_id, messages_by_time
from orbitmq.client.admin.targets import Missing
from orbitmq.client.admin.topics import list_topics, topic_status
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest, NotFound
from orbitmq.client.reader import parse_tags
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.message import Message
from orbitmq.wire.properties import Prop
from orbitmq.wire.topics import DEAD_PREFIX, dead_topic

REASON: Final = "DLQ_REASON"
ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"


class DeadSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters of one group. `messages` is None when some broker did not answer."""

    group: str
    messages: int | None
    last_ms: int | None
    missing: list[Missing]


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Which dead letters are meant; the default means all of them."""

    since_ms: int = 0
    until_ms: int = FOREVER_MS
    key: str | None = None
    tags: str = "*"
    reason: re.Pattern[str] | None = None

    def matches(self, message: Message) -> bool:
        if not self.since_ms <= message.store_ms <= self.until_ms:
            return False
        if self.key is not None and self.key not in message.key_list:
            return False
        tags = parse_tags(self.tags)
        if tags and message.tags not in tags:
            return False
        return self.reason is None or self.reason.search(failure_reason(message) or "") is not None


def parse_reason(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise BadRequest(
            f"'{pattern}' is not a regular expression: {error}", hint="escape special characters with \\"
        ) from error


def origin_topic(message: Message) -> str | None:
    """The topic a dead letter was sent to at first."""
    return message.properties.get(Prop.RETRY_TOPIC) or message.properties.get(ORIGIN_TOPIC)


def failure_reason(message: Message) -> str | None:
    """What the consumer said when it failed the last time; None if it said nothing."""
    return message.properties.get(REASON)


async def dead_groups(cluster: Cluster) -> list[DeadSummary]:
    """The groups that have a dead-letter topic, and how much is in it."""
    found = []
    for topic in await list_topics(cluster, all_kinds=True):
        if not topic.name.startswith(DEAD_PREFIX):
            continue
        status = await topic_status(cluster, topic.name)
        times = [queue.last_update_ms for queue in status.queues if queue.last_update_ms is not None]
        found.append(
            DeadSummary(
                group=topic.name[len(DEAD_PREFIX) :],
                messages=status.messages,
                last_ms=max(times, default=None),
                missing=status.missing,
            )
        )
    return found


async def dead_letters(
    cluster: Cluster, group: str, wanted: DeadFilter | None = None
) -> AsyncGenerator[Message, None]:
    """The dead letters of a group that are wanted, in the order in which they died."""
    wanted = wanted or DeadFilter()
    await need_dead_topic(cluster, group)
    stream = messages_by_time(cluster, dead_topic(group), wanted.since_ms, wanted.until_ms)
    async with aclosing(stream):
        async for message in stream:
            if wanted.matches(message):
                yield message


async def find_dead(cluster: Cluster, group: str, msg_id: str) -> Message:
    """The dead letter with this id: the producer's, or the broker's id of the dead letter itself."""
    await need_dead_topic(cluster, group)
    topic = dead_topic(group)
    try:
        return (await messages_by_id(cluster, topic, msg_id))[-1]
    except NotFound as error:
        missing = NotFound(
            f"group '{group}' has no dead letter with the id {msg_id}",
            hint=f"see `orbitmq dead list {group}`",
        )
        try:
            message = await message_by_offset_id(cluster, msg_id)
        except (NotFound, BadRequest):
            raise missing from error
        if message.topic != topic:
            raise missing from error
        return message


async def need_dead_topic(cluster: Cluster, group: str) -> None:
    """A group without the topic never had a dead letter: that is said instead of naming an inner topic."""
    if await cluster.find_route(dead_topic(group), refresh=True) is None:
        raise NotFound(
            f"group '{group}' has no dead letters",
            hint="check the name with `orbitmq dead list`",
            code=ResponseCode.TOPIC_NOT_EXIST,
        )
