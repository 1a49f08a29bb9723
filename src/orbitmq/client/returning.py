"""Giving a failed message back: to its broker, to any broker, or for good to the dead letters."""

from __future__ import annotations

import logging
from typing import Final

from orbitmq.client.cluster import Cluster
from orbitmq.client.core import back_off
from orbitmq.client.errors import OrbitMQError
from orbitmq.client.message import Message
from orbitmq.client.offset_store import master_of
from orbitmq.client.receipt import SEND_STATUS
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import request
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.properties import Prop, encode_properties
from orbitmq.wire.topics import DEFAULT_TOPIC, retry_topic

log = logging.getLogger("orbitmq.consumer")

TIMEOUT_S: Final = 5.0
INNER_GROUP: Final = "CLIENT_INNER_PRODUCER"
REASON_FIELD: Final = "failureReason"
MAX_REASON_CHARS: Final = 1000


class Returner:
    """Gives messages back for one group."""

    def __init__(
        self, cluster: Cluster, group: str, *, max_retries: int = back_off.DEFAULT_MAX_RETRIES
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._max_retries = max_retries

    async def give_back(self, msg: Message, level: int, reason: str) -> None:
        """Returns when a broker has it; raises when none took it."""
        try:
            await self._to_its_broker(msg, level, reason)
        except OrbitMQError as error:
            log.info("%r is stored for retry by this client, because its broker refused: %s", msg, error)
            await self._to_any_broker(msg, level)

    async def _to_its_broker(self, msg: Message, level: int, reason: str) -> None:
        addr = await master_of(self._cluster, msg.queue)
        ext = {
            "offset": str(msg.commit_log_offset),
            "group": self._group,
            "delayLevel": str(level),
            "originMsgId": msg.msg_id,
            "originTopic": msg.topic,
            "unitMode": "false",
            "maxReconsumeTimes": str(self._max_retries),
            "bname": msg.broker,
        }
        if reason:
            ext[REASON_FIELD] = reason[:MAX_REASON_CHARS]
        await self._cluster.request(
            addr, request(RequestCode.CONSUMER_SEND_MSG_BACK, ext), timeout_s=TIMEOUT_S
        )

    async def _to_any_broker(self, msg: Message, level: int) -> None:
        """A copy into the group's retry topic; a full count of tries makes the broker bury it."""
        topic = retry_topic(self._group)
        route = await self._cluster.route(topic)
        queues = list(route.publish_queues())
        self._cluster.rng.shuffle(queues)
        last: OrbitMQError | None = None
        for queue in queues:
            master = route.brokers[queue.broker_name].master
            if master is None:
                continue
            try:
                await self._cluster.request(
                    master,
                    request(RequestCode.SEND_MESSAGE_V2, self._copy_header(msg, queue, level), msg.body),
                    accept=SEND_STATUS,
                    timeout_s=TIMEOUT_S,
                )
            except OrbitMQError as error:
                last = error
                continue
            return
        raise last or OrbitMQError(
            f"retry topic '{topic}' has no writable queue", hint="see `orbitmq topic route`", retryable=True
        )

    def _copy_header(self, msg: Message, queue: MessageQueue, level: int) -> dict[str, str]:
        failed = self._max_retries if level == back_off.STRAIGHT_TO_DEAD else msg.reconsume_times + 1
        properties = dict(msg.properties)
        properties.setdefault(Prop.RETRY_TOPIC, msg.topic)
        properties.setdefault(Prop.ORIGIN_MESSAGE_ID, msg.offset_msg_id)
        properties[Prop.RECONSUME_TIME] = str(failed)
        properties[Prop.MAX_RECONSUME_TIMES] = str(self._max_retries)
        properties[Prop.DELAY] = str(level if level > 0 else back_off.own_level(msg.reconsume_times))
        properties.pop(Prop.TRANSACTION_PREPARED, None)
        return {
            "a": INNER_GROUP,
            "b": queue.topic,
            "c": DEFAULT_TOPIC,
            "d": "4",
            "e": str(queue.queue_id),
            "f": "0",
            "g": str(msg.born_ms),
            "h": str(msg.flag),
            "i": encode_properties(properties).decode(),
            "j": str(failed),
            "k": "false",
            "l": str(self._max_retries),
            "m": "false",
            "n": queue.broker_name,
        }


class NoReturns:
    """Broadcasting: every member has its own copy, and a failed one is not repeated."""

    def __init__(self, group: str) -> None:
        self._group = group

    async def give_back(self, msg: Message, level: int, reason: str) -> None:
        log.warning(
            "%r failed in broadcasting group '%s' and is not repeated: %s",
            msg,
            self._group,
            reason or "no reason",
        )
