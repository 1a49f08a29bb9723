"""A topic that a first send made on this broker is made on the other masters of the cluster, too.

Otherwise it would live here alone: producers learn its route a moment later, see one broker and send to no other.
The other masters are asked once, at the addresses the name servers know. One that cannot be reached, or does not know
the request, goes without the topic: `orbitmq cluster expand` gives it later. A master that has the topic already keeps
its own settings, and one that makes no topics by itself (autoCreateTopicEnable=false) does not make this one either.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from orbitmq.broker.room import Room
from orbitmq.broker.topic_config import TopicConfig
from orbitmq.net.channel import ChannelPool
from orbitmq.net.errors import RemotingError, RequestError
from orbitmq.wire import fastjson
from orbitmq.wire.codes import OrbitCode, RequestCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.errors import WireError
from orbitmq.wire.topics import validate_topic

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.broker.timers import Timers
    from orbitmq.net.connection import Connection
    from orbitmq.net.service import Handler

log = logging.getLogger("orbitmq.broker")

TIMEOUT_S: Final = 3.0
MAX_WAITING: Final = 10_000
MAX_TOLD_AT_ONCE: Final = 500
MASTER_ID: Final = 0


class Spreading(Room):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[str, None] = {}
        self._wake = asyncio.Event()

    def handlers(self) -> dict[int, Handler]:
        return {OrbitCode.SPREAD_TOPICS: self.take}

    def start(self, timers: Timers) -> None:
        self._broker.topics.on_made_by_send.append(self.made)
        timers.run(self._run(), "spread-topics")

    def made(self, topic: TopicConfig) -> None:
        """Called in the middle of a send: only notes it."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting[topic.name] = None
            self._wake.set()
        else:
            log.warning("topic %s stays on this broker: too many others wait to be told on", topic.name)

    # --- telling ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            pool = ChannelPool(connect_timeout_s=TIMEOUT_S)
            try:
                while self._waiting:
                    names = list(self._waiting)[:MAX_TOLD_AT_ONCE]
                    for name in names:
                        del self._waiting[name]
                    await self._tell(pool, names)
            except Exception:
                log.exception("other masters were not told of new topics")
            finally:
                # Seldom needed: a connection that is kept would only have to be watched.
                await pool.close()

    async def _tell(self, pool: ChannelPool, names: list[str]) -> None:
        peers = await self._peers(pool)
        topics = [topic.to_json() for name in names if (topic := self._broker.topics.get(name)) is not None]
        if not peers or not topics:
            return
        body = fastjson.dumps({"topicConfigList": topics})
        await asyncio.gather(*(self._tell_one(pool, name, addr, body) for name, addr in peers.items()))

    async def _tell_one(self, pool: ChannelPool, name: str, addr: str, body: bytes) -> None:
        try:
            answer = await pool.request(addr, request(OrbitCode.SPREAD_TOPICS, body=body), TIMEOUT_S)
        except RemotingError as error:
            log.info("new topics are not on broker %s: %s", name, error.what)
            return
        if answer.code != ResponseCode.SUCCESS:
            log.info("new topics are not on broker %s: %s", name, answer.remark or answer.code)

    async def _peers(self, pool: ChannelPool) -> dict[str, str]:
        """The other masters of this cluster by broker name, as the first name server that answers has them."""
        for namesrv in self._broker.config.namesrv_addresses:
            try:
                answer = await pool.request(namesrv, request(RequestCode.GET_BROKER_CLUSTER_INFO), TIMEOUT_S)
                return masters_beside(
                    self._broker.config.broker_cluster_name, self._broker.config.broker_name, answer.body
                )
            except (RemotingError, WireError) as error:
                log.info("name server %s does not tell who else is in the cluster: %s", namesrv, error)
        return {}

    # --- being told -------------------------------------------------------------------------------------------

    def take(self, conn: Connection, cmd: Command) -> Command:
        """SPREAD_TOPICS from another master: makes those that are not here."""
        broker = self._broker
        if broker.config.is_slave or not broker.config.auto_create_topic_enable:
            return cmd.reply(ext={"made": "0"})
        data = fastjson.loads(cmd.body)
        entries = data.get("topicConfigList") if isinstance(data, Mapping) else None
        if not isinstance(entries, list) or len(entries) > MAX_TOLD_AT_ONCE:
            raise _not_understood(f"a topicConfigList of at most {MAX_TOLD_AT_ONCE} topics is expected")
        try:
            topics = [TopicConfig.from_json(entry) for entry in entries]
        except (TypeError, ValueError, AttributeError) as error:
            raise _not_understood(str(error)) from error
        new = [topic for topic in topics if self._is_new(topic.name)]
        for topic in new:
            broker.topics.put(topic, broker.clock())
        if new:
            log.info("made %d topic(s) that %s has got by a first send", len(new), conn.peer)
            broker.register_soon(new[0].name if len(new) == 1 else None)
        return cmd.reply(ext={"made": str(len(new))})

    def _is_new(self, name: str) -> bool:
        topics = self._broker.topics
        return topics.get(name) is None and validate_topic(name) is None and not topics.is_system(name)


def masters_beside(cluster: str, own: str, cluster_info: bytes) -> dict[str, str]:
    """Name to address of the masters in ClusterInfo that are of this cluster and not of this broker name."""
    data: Any = fastjson.loads(cluster_info) if cluster_info else {}
    try:
        names = (data.get("clusterAddrTable") or {}).get(cluster) or ()
        brokers = data.get("brokerAddrTable") or {}
        found = {}
        for name in names:
            addrs = {int(key): addr for key, addr in (brokers[name].get("brokerAddrs") or {}).items()}
            if name != own and MASTER_ID in addrs:
                found[str(name)] = str(addrs[MASTER_ID])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WireError(f"the cluster information is not understood: {error!r}") from error
    return found


def _not_understood(why: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, f"the new topics are not understood: {why}")
