"""What brokers and tools ask of a running consumer: rebalance, set offsets, tell how it is doing, try a message."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from orbitmq.client.errors import OrbitMQError
from orbitmq.client.message import Message
from orbitmq.client.presence import Presence
from orbitmq.net.channel import Channel
from orbitmq.wire import bodies
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.headers import (
    ConsumeDirectlyHeader,
    ConsumerGroupHeader,
    ConsumerStatusHeader,
    ResetOffsetHeader,
    RunningInfoHeader,
    parse,
)
from orbitmq.wire.message import decode_record

if TYPE_CHECKING:
    from orbitmq.client.consumer import Consumer
    from orbitmq.client.holding import Holding

_MIB: Final = 1024 * 1024
# The name of the version that commands of this client carry as a number.
JAVA_VERSION_NAME: Final = "V4_9_7"


class Answers:
    """Serves these requests for one consumer, from `start` until `stop`. Other groups' requests are left to others."""

    def __init__(self, consumer: Consumer, presence: Presence) -> None:
        self._consumer = consumer
        self._presence = presence
        self._removers: list[Callable[[], None]] = []

    def start(self) -> None:
        table = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
        }
        self._removers = [self._presence.on(code, handler) for code, handler in table.items()]
        self._removers.append(self._presence.on(RequestCode.CONSUME_MESSAGE_DIRECTLY, self._try_message))

    def stop(self) -> None:
        for remove in self._removers:
            remove()
        self._removers.clear()

    def _members_changed(self, channel: Channel, command: Command) -> Command | None:
        if parse(ConsumerGroupHeader, command.ext).consumer_group != self._consumer.group:
            return None
        self._consumer.rebalance_soon()
        return command.reply()

    def _reset(self, channel: Channel, command: Command) -> Command | None:
        header = parse(ResetOffsetHeader, command.ext)
        if header.group != self._consumer.group:
            return None
        for queue, offset in bodies.decode_reset_offsets(command.body).items():
            if queue.topic == header.topic:
                self._consumer.reset(queue, offset)
        return command.reply()

    def _status(self, channel: Channel, command: Command) -> Command | None:
        header = parse(ConsumerStatusHeader, command.ext)
        if header.group != self._consumer.group:
            return None
        offsets = {
            queue: offset
            for queue, offset in self._consumer.positions().items()
            if not header.topic or queue.topic == header.topic
        }
        return command.reply(body=bodies.encode(bodies.ConsumerStatusBody(message_queue_table=offsets)))

    def _running_info(self, channel: Channel, command: Command) -> Command | None:
        if parse(RunningInfoHeader, command.ext).consumer_group != self._consumer.group:
            return None
        return command.reply(body=bodies.encode(running_info(self._consumer)))

    async def _try_message(self, channel: Channel, command: Command) -> Command | None:
        """Runs the handler on one message outside its queue, as `mqadmin consumeMessageDirectly` wants it."""
        header = parse(ConsumeDirectlyHeader, command.ext)
        consumer = self._consumer
        if header.consumer_group != consumer.group:
            return None
        if consumer.try_handler is None:
            remark = f"group {consumer.group} iterates over its messages here: there is no handler to call"
            return command.reply(ResponseCode.SYSTEM_ERROR, remark=remark)
        decode_record(command.body)
        started = time.perf_counter()
        result = bodies.ConsumeDirectlyResult(order=consumer.ordered)
        try:
            await consumer.try_handler(Message(command.body, 0, header.broker_name or "", _Tried()))
        except Exception as error:
            result.consume_result = "CR_THROW_EXCEPTION"
            hint = f" ({error.hint})" if isinstance(error, OrbitMQError) and error.hint else ""
            result.remark = f"{type(error).__name__}: {error}{hint}"
        result.spent_time_mills = round((time.perf_counter() - started) * 1000)
        return command.reply(body=bodies.encode(result))


class _Tried:
    """The origin of a message that is only tried: what its handler says about it changes nothing."""

    def finish(self, msg: Message) -> None:
        return

    async def retry(self, msg: Message, after_s: float | None, reason: str) -> None:
        return

    async def bury(self, msg: Message, reason: str) -> None:
        return

    def release(self, msg: Message) -> None:
        return


def running_info(consumer: Consumer) -> bodies.ConsumerRunningInfo:
    """Everything in the form that `mqadmin consumerStatus` shows."""
    rates = consumer.rates
    status = bodies.ConsumeStatus(
        consume_failed_msgs=consumer.tally.failed,
        consume_failed_tps=rates.failed,
        consume_ok_tps=rates.finished,
        consume_rt=consumer.times.mean_ms,
        pull_tps=rates.pulled,
    )
    return bodies.ConsumerRunningInfo(
        mq_table={queue: _queue_info(holding) for queue, holding in consumer.holdings.items()},
        properties={
            "PROP_NAMESERVER_ADDR": ";".join(consumer.client.cluster.namesrv_addrs) + ";",
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMEORDERLY": "true" if consumer.ordered else "false",
            "PROP_THREADPOOL_CORE_SIZE": str(consumer.concurrency),
            "PROP_CONSUMER_START_TIMESTAMP": str(consumer.started_ms),
            "PROP_CLIENT_VERSION": JAVA_VERSION_NAME,
        },
        status_table=dict.fromkeys(consumer.subscriptions, status),
        subscription_set=list(consumer.subscriptions.values()),
    )


def _queue_info(holding: Holding) -> bodies.ProcessQueueInfo:
    unfinished = holding.unfinished
    count = len(unfinished)
    return bodies.ProcessQueueInfo(
        cached_msg_count=count,
        cached_msg_max_offset=unfinished.newest or 0,
        cached_msg_min_offset=unfinished.commit_offset if count else 0,
        cached_msg_size_in_mib=unfinished.bytes // _MIB,
        commit_offset=unfinished.commit_offset,
        droped=holding.dropped,
        last_lock_timestamp=holding.lock_taken_ms,
        last_pull_timestamp=holding.last_pull_ms,
        last_consume_timestamp=holding.last_pull_ms,
        locked=holding.lock_taken_ms > 0,
    )
