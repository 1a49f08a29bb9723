"""Serving a pull: check, read, answer; or hold it until something arrives.

One path for all: the hot decoder only saves building a Command. With the accelerator a pull of everything that was
found good before takes a shorter way (`_quick`). A held pull is tried again when its queue grows and answered when it
finds something or its time is over.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING

from orbitmq.accel import found_page, found_parts, read_pull
from orbitmq.broker.pull_answer import ANSWER, FOUND, FOUND_PARTS
from orbitmq.broker.pull_lanes import Lanes
from orbitmq.broker.pull_request import Pull
from orbitmq.config import BrokerRole
from orbitmq.net.connection import Connection
from orbitmq.net.errors import RequestError
from orbitmq.net.together import Together
from orbitmq.store import reading
from orbitmq.store.consume_queue import ConsumeQueue
from orbitmq.store.reading import ReadResult
from orbitmq.store.selection import EVERYTHING, Selection
from orbitmq.wire.bodies import SubscriptionData
from orbitmq.wire.codes import PagePart, Perm, PullFlag, ResponseCode
from orbitmq.wire.command import CODEC_JSON, Command, encode_head
from orbitmq.wire.errors import WireError
from orbitmq.wire.header_json import HOT_ERRORS, PULL, PullFields
from orbitmq.wire.headers import PullHeader, parse
from orbitmq.wire.subscription import build_subscription

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker

MOST_HELD = 10_000
"""Pulls that one connection may leave waiting; more are answered at once."""

Slow = Callable[[Connection, bytes, int, int], None]

_FRONT = Struct(">II")
_PREFIX = _FRONT.pack
_decode = PULL.decode
_SUCCESS = int(ResponseCode.SUCCESS)
_CODES = {
    reading.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    reading.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    reading.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    reading.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    reading.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    reading.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
NOT_HERE = "SLAVE_READ_DISABLED"
_EMPTY = (reading.NO_MATCHED_LOGIC_QUEUE, reading.NO_MESSAGE_IN_QUEUE)


class PullHandler:
    def __init__(self, broker: Broker, slow: Slow) -> None:
        self._broker = broker
        self._slow = slow
        self._held: dict[Pull, ConsumeQueue] = {}
        self.together = Together()
        """Answers to held pulls, until all queues that grew have been told of."""
        self._lanes = Lanes(broker)
        self._filters: dict[tuple[str, str], tuple[SubscriptionData, Selection]] = {}
        self.compile_filter: Callable[[SubscriptionData], Selection] = tag_filter
        """Replaced by the filter room, which also knows SQL92."""

    # --- entry ------------------------------------------------------------------------------------------------

    def bulk(self, conn: Connection, data: bytes, start: int, stop: int) -> int:
        """The pull that begins here, if it is like one that was found good before; behind it the rest is looked at."""
        if read_pull is None or stop - start < _FRONT.size:
            return start
        size, header_bytes = _FRONT.unpack_from(data, start)
        end = start + 4 + size
        if end > stop or header_bytes + 4 != size:
            return start
        read = read_pull(data, start + 8, end)
        return end if read is not None and self._quick(conn, *read) else start

    def hot(self, conn: Connection, data: bytes, start: int, header_end: int, stop: int) -> None:
        key = b""
        if read_pull is not None and (read := read_pull(data, start + 4, header_end)) is not None:
            if self._quick(conn, *read):
                return
            key = read[0]
        try:
            header = _decode(data[start + 4 : header_end])
        except HOT_ERRORS:
            self._slow(conn, data, start, stop)
            return
        if header.flag & 3:  # an answer that looks like a request, or one-way
            self._slow(conn, data, start, stop)
            return
        f = header.extFields
        pull = Pull(conn, header.opaque, CODEC_JSON, f, self._broker.clock(), f.queue_offset)
        try:
            self._start(pull, key)
        except RequestError as error:
            self._refuse(pull, error)

    def _quick(
        self,
        conn: Connection,
        key: bytes,
        opaque: int,
        offset: int,
        max_count: int,
        flags: int,
        commit_offset: int,
        wait_ms: int,
        sub_version: int,
        page_bytes: int,
        page_parts: int,
    ) -> bool:
        """Answers a pull like one that was found good before, or holds it. False: the whole way has to be gone."""
        broker = self._broker
        lane = self._lanes.known.get(key)
        if lane is None or max_count < 1:
            return False
        if not lane.holds(broker, flags, sub_version):
            del self._lanes.known[key]
            return False
        queue = lane.queue
        if offset != queue.max_offset:
            if not self._send_found(
                conn, queue, offset, max_count, page_bytes, opaque, lane.group, page_parts
            ):
                return False
        elif flags & PullFlag.SUSPEND and wait_ms > 0 and conn.held < MOST_HELD:
            fields = PullFields(
                lane.group,
                lane.topic,
                lane.queue_id,
                offset,
                max_count,
                flags,
                commit_offset,
                wait_ms,
                sub_version,
                page_bytes=page_bytes,
            )
            self._hold(Pull(conn, opaque, CODEC_JSON, fields, broker.clock(), offset), queue)
        else:
            return False
        if flags & PullFlag.COMMIT_OFFSET:
            broker.offsets.commit(lane.group, lane.topic, lane.queue_id, commit_offset)
        return True

    def _send_found(
        self,
        conn: Connection,
        queue: ConsumeQueue,
        offset: int,
        max_count: int,
        page_bytes: int,
        opaque: int,
        group: str,
        page_parts: int = PagePart.WHOLE,
    ) -> bool:
        """The whole answer by the accelerator, which writes a large page itself; False: nothing was sent."""
        place = self._broker.store.reader.place(queue, offset, max_count, page_bytes)
        if place is None or found_page is None or found_parts is None:
            return False
        fd = conn.idle_fd() if page_bytes else -1
        numbers = queue.max_offset, queue.min_offset, offset, 0, opaque, fd
        count = 0
        if page_bytes > 0 and 0 <= page_parts < len(FOUND_PARTS):
            frame, count, size = found_parts(*place, FOUND_PARTS[page_parts], *numbers, page_parts)
        if not count:  # parts are not asked for, or some record cannot be cut
            frame, count, size = found_page(*place, FOUND, *numbers)
        if not count:
            return False
        if frame:
            conn.send(frame)
        self._broker.stats.get(queue.topic, group, count, size)
        return True

    def handle(self, conn: Connection, command: Command) -> None:
        header = parse(PullHeader, command.ext)
        if command.is_oneway:
            return
        fields = PullFields(
            header.consumer_group,
            header.topic,
            header.queue_id,
            header.queue_offset,
            header.max_msg_nums,
            header.sys_flag,
            header.commit_offset,
            header.suspend_timeout_millis,
            header.sub_version,
            header.subscription,
            header.expression_type,
            header.page_bytes,
        )
        pull = Pull(conn, command.opaque, command.codec, fields, self._broker.clock(), header.queue_offset)
        self._start(pull)

    # --- checks, in the documented order ----------------------------------------------------------------------

    def _start(self, pull: Pull, key: bytes = b"") -> None:
        """With a key: what was found good is remembered under it."""
        f = pull.fields
        broker = self._broker
        if not broker.config.broker_permission & Perm.READ:
            raise RequestError(ResponseCode.NO_PERMISSION, "the broker pulling message is forbidden")
        group = broker.groups.find(f.consumer_group, pull.started_ms)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{f.consumer_group}] does not exist; create it or switch "
                "autoCreateSubscriptionGroup on",
            )
        if not group.consume_enable:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"subscription group no permission, {f.consumer_group} may not consume",
            )
        topic = broker.topics.get(f.topic)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{f.topic}] not exist, apply first please!"
            )
        if not topic.perm & Perm.READ:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the topic[{f.topic}] pulling message is forbidden"
            )
        if not 0 <= f.queue_id < topic.read_queue_nums:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{f.queue_id}] is illegal, topic:[{f.topic}] topicConfig.readQueueNums:"
                f"[{topic.read_queue_nums}] consumer:[{pull.conn.peer}]",
            )
        pull.filter = self._filter(pull)
        if not broker.serves_reads:
            self._answer(
                pull,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
                ReadResult(NOT_HERE, f.queue_offset, 0, 0, [], 0, 0),
            )
            return
        if f.sys_flag & PullFlag.COMMIT_OFFSET and not broker.config.is_slave:
            broker.offsets.commit(f.consumer_group, f.topic, f.queue_id, f.commit_offset)
        if key and pull.filter is EVERYTHING:
            self._lanes.remember(key, f.consumer_group, f.topic, f.queue_id, f.sys_flag)
        self._read(pull, may_hold=bool(f.sys_flag & PullFlag.SUSPEND) and f.suspend_timeout_millis > 0)

    def _filter(self, pull: Pull) -> Selection:
        f = pull.fields
        if f.sys_flag & PullFlag.SUBSCRIPTION:
            expression = f.subscription or "*"
            kind = f.expression_type or "TAG"
            if kind == "TAG" and expression == "*":
                return EVERYTHING
            return self._compiled(
                lambda: build_subscription(f.topic, expression, kind, version_ms=f.sub_version)
            )
        broker = self._broker
        consumers = broker.clients.consumer_group(f.consumer_group)
        if consumers is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist: no heartbeat of group {f.consumer_group} reached this broker",
            )
        if consumers.message_model == "BROADCASTING":
            config = broker.groups.get(f.consumer_group)
            if config is not None and not config.consume_broadcast_enable:
                raise RequestError(
                    ResponseCode.NO_PERMISSION,
                    f"the consumer group[{f.consumer_group}] can not consume by broadcast way",
                )
        subscription = consumers.subscriptions.get(f.topic)
        if subscription is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: group {f.consumer_group} does not subscribe to {f.topic}",
            )
        if subscription.sub_version < f.sub_version:
            raise RequestError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        key = (f.consumer_group, f.topic)
        known = self._filters.get(key)
        if known is not None and known[0] is subscription:
            return known[1]
        compiled = self._compiled(lambda: subscription)
        self._filters[key] = (subscription, compiled)
        return compiled

    def _compiled(self, subscription: Callable[[], SubscriptionData]) -> Selection:
        try:
            return self.compile_filter(subscription())
        except (ValueError, WireError) as error:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {error}",
            ) from error

    # --- reading and answering --------------------------------------------------------------------------------

    def _read(self, pull: Pull, may_hold: bool) -> None:
        f = pull.fields
        store = self._broker.store
        result = store.reader.read(
            store.find_queue(f.topic, f.queue_id),
            pull.offset,
            f.max_msg_nums,
            pull.filter,
            f.page_bytes,
        )
        if result.status == reading.FOUND:
            self._answer(pull, _SUCCESS, result)
            return
        code = _CODES.get(result.status)
        if code is None:  # nothing was ever stored here
            code = ResponseCode.PULL_OFFSET_MOVED if f.queue_offset else ResponseCode.PULL_NOT_FOUND
        if code == ResponseCode.PULL_OFFSET_MOVED and self._is_only_behind:
            # The master may well have what is asked for: nobody is sent elsewhere in the queue by a slave.
            gone = self._broker.replication.master_is_gone
            code = ResponseCode.PULL_NOT_FOUND if gone else ResponseCode.PULL_RETRY_IMMEDIATELY
            result = result._replace(next_offset=f.queue_offset)
        if code == ResponseCode.PULL_NOT_FOUND and may_hold and pull.conn.held < MOST_HELD:
            self._hold(pull, store.queue(f.topic, f.queue_id))
            return
        self._answer(pull, int(code), result)
        if code == ResponseCode.PULL_OFFSET_MOVED:
            self._broker.offset_moved(
                f.consumer_group, f.topic, f.queue_id, f.queue_offset, result.next_offset
            )

    @property
    def _is_only_behind(self) -> bool:
        config = self._broker.config
        return config.is_slave and not config.offset_check_in_slave

    def _answer(self, pull: Pull, code: int, result: ReadResult) -> None:
        suggested = self._broker.suggested_broker_id(pull.fields.consumer_group, result)
        if pull.codec == CODEC_JSON:
            header = ANSWER % (
                code,
                result.max_offset,
                result.min_offset,
                result.next_offset,
                suggested,
                pull.opaque,
                result.status.encode(),
            )
            size = len(header)
            head = _PREFIX(size + 4 + result.size, size) + header
        else:
            head = encode_head(
                Command(
                    code,
                    flag=1,
                    opaque=pull.opaque,
                    ext={
                        "maxOffset": str(result.max_offset),
                        "minOffset": str(result.min_offset),
                        "nextBeginOffset": str(result.next_offset),
                        "suggestWhichBrokerId": str(suggested),
                    },
                    remark=result.status,
                    codec=pull.codec,
                    body=b"".join(result.chunks),
                )
            )
        pull.conn.send_parts([head, *result.chunks])
        if result.messages:
            f = pull.fields
            self._broker.stats.get(
                f.topic,
                f.consumer_group,
                result.messages,
                result.size,
                self._broker.clock() - pull.started_ms,
            )

    def _refuse(self, pull: Pull, error: RequestError) -> None:
        reply = Command(error.code, flag=1, opaque=pull.opaque, remark=error.remark, codec=pull.codec)
        pull.conn.send(encode_head(reply))

    # --- held pulls -------------------------------------------------------------------------------------------

    def _hold(self, pull: Pull, queue: ConsumeQueue) -> None:
        config = self._broker.config
        asked_ms = pull.fields.suspend_timeout_millis
        wait_ms = asked_ms if config.long_polling_enable else config.short_polling_time_mills
        pull.deadline_ms = pull.started_ms + min(wait_ms, 300_000)
        queue.waiters.append(pull)
        self._held[pull] = queue
        pull.conn.held += 1

    def _let_go(self, pull: Pull) -> None:
        if self._held.pop(pull, None) is not None:
            pull.conn.held -= 1

    def arrived(self, queue: ConsumeQueue, alone: bool = False) -> None:
        """The queue grew: whoever finds something now is answered, the others keep waiting from where they looked.

        When it is the only one that grew, and one waits, there is nothing to collect.
        """
        waiters = queue.waiters
        queue.waiters = []
        alone = alone and len(waiters) == 1
        for pull in waiters:
            conn = pull.conn
            if conn.closed:
                self._let_go(pull)
                continue
            if conn.congested:
                # Thousands of pulls may wait for this one message: a peer must read what it has got to get more.
                pull.overdue = True
                queue.waiters.append(pull)
                continue
            # Everything: a pull is above the end only on a slave that is behind.
            everything = pull.filter.is_everything
            if pull.offset >= queue.max_offset if everything else self._waits_on(pull, queue):
                queue.waiters.append(pull)
                continue
            self._let_go(pull)
            if alone:
                self._finish(pull, queue)
            else:
                self.together.collect(conn)
                self._finish(pull, queue)
                self.together.sent(conn)

    def _waits_on(self, pull: Pull, queue: ConsumeQueue) -> bool:
        """Whether nothing of what came is for this pull; it then goes on behind it."""
        # Only whether there is something matters here: one message is enough.
        result = self._broker.store.reader.read(queue, pull.offset, 1, pull.filter)
        if result.status not in (reading.NO_MATCHED_MESSAGE, reading.OFFSET_OVERFLOW_ONE):
            return False
        pull.offset = max(pull.offset, result.next_offset)
        return True

    def expire(self, now_ms: int) -> None:
        """Answers held pulls whose time is over, and forgets those whose client has gone."""
        due = [pull for pull in self._held if pull.overdue or pull.deadline_ms <= now_ms or pull.conn.closed]
        for pull in due:
            if pull.conn.congested and not pull.conn.closed:
                continue
            queue = self._held[pull]
            self._let_go(pull)
            if pull in queue.waiters:
                queue.waiters.remove(pull)
            if not pull.conn.closed:
                self._finish(pull, queue)

    def topic_deleted(self, name: str) -> None:
        for pull, queue in list(self._held.items()):
            if queue.topic == name:
                self._let_go(pull)
                self._refuse(pull, RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] was deleted"))

    def release_all(self) -> None:
        """At shutdown: every held pull gets its answer, so that clients turn to another broker at once."""
        for pull, queue in list(self._held.items()):
            self._let_go(pull)
            if not pull.conn.closed:
                self._finish(pull, queue)

    def _finish(self, pull: Pull, queue: ConsumeQueue) -> None:
        f = pull.fields
        config = self._broker.config
        if (
            pull.filter.is_everything
            and pull.codec == CODEC_JSON
            and config.broker_role is not BrokerRole.SLAVE
            and not config.slave_read_enable
            and self._send_found(
                pull.conn, queue, pull.offset, f.max_msg_nums, f.page_bytes, pull.opaque, f.consumer_group
            )
        ):
            return
        try:
            self._read(pull, may_hold=False)
        except RequestError as error:
            self._refuse(pull, error)

    @property
    def held_count(self) -> int:
        return len(self._held)


def tag_filter(subscription: SubscriptionData) -> Selection:
    if subscription.expression_type not in ("", "TAG", None):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {subscription.expression_type}",
        )
    if subscription.sub_string in ("*", "") or not subscription.code_set:
        return EVERYTHING
    return Selection(frozenset(subscription.code_set))
