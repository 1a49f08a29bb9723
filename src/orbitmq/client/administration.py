"""`mq.admin`: what tools do to a cluster, for programs. Thin over `client/admin`, in the words of the public API."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from orbitmq.client import admin
from orbitmq.client.admin import dead, half, members, messages, resize, schedule
from orbitmq.client.admin.redrive import Redrive, RedriveReport
from orbitmq.client.admin.reset import TO_FIRST_MS, TO_LAST_MS
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest, NotFound
from orbitmq.client.lag import Lag, Unknown, lag_of
from orbitmq.client.message import Message
from orbitmq.client.routes import ClusterMap, TopicRoute
from orbitmq.client.times import moment_ms
from orbitmq.wire.codes import Perm
from orbitmq.wire.message import Message as Record
from orbitmq.wire.message import encode_record

if TYPE_CHECKING:
    from orbitmq.client.client import Client

MAX_FOUND: Final = 64
MAX_LISTED: Final = 100


class Administration:
    """Everything here asks all brokers concerned at once; answers that miss one say so."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def _cluster(self) -> Cluster:
        self._client.check_open()
        return self._client.cluster

    # --- topics -------------------------------------------------------------------------------------------------

    async def topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics, by default without those of the system (retries, dead letters)."""
        return [topic.name for topic in await admin.list_topics(self._cluster, all_kinds=internal)]

    async def topic(self, name: str) -> admin.TopicStatus:
        """What each queue of a topic holds."""
        return await admin.topic_status(self._cluster, name)

    async def route(self, topic: str) -> TopicRoute:
        """Which brokers serve a topic, with how many queues."""
        return await self._cluster.route(topic, refresh=True)

    async def create_topic(
        self,
        name: str,
        *,
        queues: int = 8,
        ordered: bool = False,
        readable: bool = True,
        writable: bool = True,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Creates a topic, or changes it, on every master, those of one cluster, or one broker."""
        await admin.create_topic(
            self._cluster,
            name,
            read_queues=queues,
            write_queues=queues,
            perm=(Perm.READ if readable else 0) | (Perm.WRITE if writable else 0),
            order=ordered,
            cluster_name=cluster,
            broker=broker,
        )

    async def grow_topic(self, name: str, queues: int) -> dict[str, resize.Size]:
        """More queues, in the order that loses nothing; the sizes by broker."""
        return await resize.grow_topic(self._cluster, name, queues)

    async def delete_topic(self, name: str) -> None:
        """Deletes a topic with its messages, on all brokers."""
        await admin.delete_topic(self._cluster, name)

    # --- groups -------------------------------------------------------------------------------------------------

    async def groups(self, *, internal: bool = False) -> list[str]:
        return [group.name for group in await admin.list_groups(self._cluster, all_kinds=internal)]

    async def groups_of(self, topic: str) -> list[str]:
        """The groups that consume a topic or have an offset in it."""
        return await admin.topic_groups(self._cluster, topic)

    async def members(self, group: str) -> members.GroupMembers:
        """Who is connected, what each subscribes to, and where they disagree."""
        return await members.group_members(self._cluster, group)

    async def create_group(
        self,
        name: str,
        *,
        max_retries: int = 16,
        retry_queues: int = 1,
        consuming: bool = True,
        broadcasting: bool = True,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Creates a group, or changes it. A message that failed more often than `max_retries` is a dead letter."""
        config = admin.GroupConfig(
            group_name=name,
            retry_max_times=max_retries,
            retry_queue_nums=retry_queues,
            consume_enable=consuming,
            consume_broadcast_enable=broadcasting,
        )
        await admin.create_group(self._cluster, config, cluster_name=cluster, broker=broker)

    async def delete_group(self, name: str, *, keep_offsets: bool = False) -> None:
        await admin.delete_group(self._cluster, name, keep_offsets=keep_offsets)

    async def progress(self, group: str, *, topic: str | None = None) -> admin.GroupProgress:
        """The offsets of a group in every queue, and those of the brokers."""
        return await admin.group_progress(self._cluster, group, topic=topic)

    async def lag(self, group: str, *, topic: str | None = None) -> Lag | Unknown:
        """How many messages a group is behind, or why that cannot be known."""
        return lag_of(await self.progress(group, topic=topic))

    async def reset(
        self,
        group: str,
        topic: str,
        *,
        to: str | datetime | int,
        queue_id: int | None = None,
        may_skip: bool = True,
        preview: bool = False,
    ) -> admin.ResetPlan:
        """Moves a group to `earliest`, `latest`, a moment, or an offset. With `preview` it only says what would change.

        The plan of a preview can be carried out later with `apply`. `may_skip=False` only moves queues back.
        """
        plan = await admin.plan_reset(
            self._cluster,
            group,
            topic,
            _reset_time_ms(to),
            offset=to if isinstance(to, int) else None,
            queue_id=queue_id,
            may_skip=may_skip,
        )
        return plan if preview else await self.apply(plan)

    async def apply(self, plan: admin.ResetPlan) -> admin.ResetPlan:
        """Carries out a plan; the result says where each queue went."""
        return await admin.apply_reset(self._cluster, plan)

    # --- messages -----------------------------------------------------------------------------------------------

    async def message(self, topic: str, msg_id: str) -> Message:
        """The newest message of a topic with this id, the producer's or the broker's."""
        try:
            return _public((await messages.messages_by_id(self._cluster, topic, msg_id))[-1])
        except NotFound as error:
            try:
                found = await messages.message_by_offset_id(self._cluster, msg_id)
            except (NotFound, BadRequest):
                raise error from None
            if found.topic != topic:
                raise
            return _public(found)

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        max_messages: int = MAX_FOUND,
    ) -> list[Message]:
        """The messages of a topic with this key, whoever consumed them."""
        found = await admin.messages_by_key(
            self._cluster,
            topic,
            key,
            begin_ms=_from_ms(since),
            end_ms=_to_ms(until),
            max_num=max_messages,
        )
        return [_public(record) for record in found]

    async def dead_groups(self) -> list[dead.DeadSummary]:
        """The groups that have dead letters, and how many."""
        return await dead.dead_groups(self._cluster)

    async def dead_letters(
        self,
        group: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        key: str | None = None,
        tags: str = "*",
        reason: str | None = None,
    ) -> AsyncGenerator[DeadLetter, None]:
        """What a group could not handle, in the order of giving up; `reason` is a regular expression."""
        wanted = _dead_filter(since, until, key, tags, reason)
        async with aclosing(dead.dead_letters(self._cluster, group, wanted)) as found:
            async for record in found:
                yield DeadLetter(
                    _public(record),
                    dead.origin_topic(record),
                    dead.failure_reason(record),
                )

    async def redrive(
        self,
        group: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        key: str | None = None,
        tags: str = "*",
        reason: str | None = None,
        rate: float = 0.0,
        max_messages: int | None = None,
        dry_run: bool = False,
    ) -> RedriveReport:
        """Sends dead letters to their topics again, each once over all runs; `rate` is messages a second."""
        wanted = _dead_filter(since, until, key, tags, reason)
        return await Redrive(
            self._cluster, group, wanted, rate=rate, limit=max_messages, dry_run=dry_run
        ).run()

    async def scheduled(
        self, *, topic: str | None = None, max_messages: int = MAX_LISTED
    ) -> schedule.Schedule:
        """What waits for its time: delayed messages and retries, the next one first."""
        return await schedule.list_scheduled(self._cluster, topic=topic, max_num=max_messages)

    async def cancel(self, topic: str, msg_id: str) -> schedule.Cancelled:
        """Takes back a message that waits for its time."""
        return await schedule.cancel_scheduled(self._cluster, topic, msg_id)

    async def open_transactions(
        self, *, group: str | None = None, topic: str | None = None, max_messages: int = MAX_LISTED
    ) -> half.HalfMessages:
        """Messages whose transaction has not ended."""
        return await half.half_messages(self._cluster, group=group, topic=topic, max_num=max_messages)

    # --- the cluster ---------------------------------------------------------------------------------------------

    async def brokers(self, *, cluster: str | None = None) -> list[admin.BrokerStatus]:
        """Every broker with its figures, or the problem that kept it from telling them."""
        return await admin.broker_statuses(self._cluster, cluster_name=cluster)

    async def clusters(self) -> ClusterMap:
        """The clusters, their brokers and addresses, as the name server sees them."""
        return await self._cluster.cluster_map()


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a group gave up, where it came from, and what the last failure said (None: nothing)."""

    message: Message
    topic: str | None
    reason: str | None


def _dead_filter(
    since: datetime | None, until: datetime | None, key: str | None, tags: str, reason: str | None
) -> dead.DeadFilter:
    pattern = dead.parse_reason(reason) if reason is not None else None
    return dead.DeadFilter(_from_ms(since), _to_ms(until), key, tags, pattern)


def _from_ms(since: datetime | None) -> int:
    return 0 if since is None else moment_ms(since, "since")


def _to_ms(until: datetime | None) -> int:
    return admin.FOREVER_MS if until is None else moment_ms(until, "until")


def _reset_time_ms(to: str | datetime | int) -> int:
    if isinstance(to, datetime):
        return moment_ms(to, "to")
    if to == "earliest":
        return TO_FIRST_MS
    if to == "latest" or (isinstance(to, int) and not isinstance(to, bool) and to >= 0):
        return TO_LAST_MS
    raise BadRequest(
        f"to={to!r} is no place to reset a group to",
        hint='use "earliest", "latest", a datetime with a time zone, or an offset',
    )


def _public(record: Record) -> Message:
    """The tools' decoded record as the message that users know."""
    data = encode_record(
        topic=record.topic,
        body=record.body,
        properties=record.properties_raw,
        queue_id=record.queue_id,
        flag=record.flag,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        sys_flag=record.sys_flag,
        born_ms=record.born_ms,
        born_host=record.born_host_bytes,
        store_ms=record.store_ms,
        store_host=record.store_host_bytes,
        reconsume_times=record.reconsume_times,
        prepared_offset=record.prepared_offset,
    )
    return Message(data, 0, record.store_host, None)
