"""A slave's tables: topics, groups, offsets and delay progress, asked of the master now and then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from orbitmq.broker.persist import DELAYS, FILTERS, GROUPS, OFFSETS, TOPICS
from orbitmq.net.channel import ChannelPool
from orbitmq.net.errors import RemotingError
from orbitmq.wire import fastjson
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import request
from orbitmq.wire.errors import WireError

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker

log = logging.getLogger("orbitmq.broker")

FIRST_S: Final = 1.0
EVERY_S: Final = 10.0
TIMEOUT_S: Final = 3.0


ASKED: Final = (
    (TOPICS, RequestCode.GET_ALL_TOPIC_CONFIG),
    (OFFSETS, RequestCode.GET_ALL_CONSUMER_OFFSET),
    (DELAYS, RequestCode.GET_ALL_DELAY_OFFSET),
    (GROUPS, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
)


def take_table(broker: Broker, name: str, data: dict[str, Any]) -> None:
    """Becomes what the master's table is, or has at least all of it. ValueError, TypeError: it is no such table."""
    if name == TOPICS:
        if data.get("dataVersion") != broker.topics.wrapper()["dataVersion"]:
            broker.topics.replace(data)
    elif name == GROUPS:
        if data.get("dataVersion") != broker.groups.to_json()["dataVersion"]:
            broker.groups.replace(data)
    elif name == OFFSETS:
        broker.offsets.merge(data)
    elif name == DELAYS:
        broker.delays.from_json(data)
        broker.delays.changes += 1
    elif name == FILTERS:
        broker.filters.from_json(data)
        broker.filters.changes += 1
    else:
        log.warning("the master sends a table that is not known here: %s", name)


class TableFollower:
    """`master` gives the master's address, None while it is not known."""

    def __init__(self, broker: Broker, master: Callable[[], str | None]) -> None:
        self._broker = broker
        self._master = master
        self._pool = ChannelPool(connect_timeout_s=TIMEOUT_S)
        self._task: asyncio.Task[None] | None = None
        self._said = ""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="follow-tables")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._pool.close()

    async def _run(self) -> None:
        await asyncio.sleep(FIRST_S)
        while True:
            address = self._master()
            problem = "no name server knows its address" if address is None else await self._follow(address)
            if problem and problem != self._said:
                log.warning("the master's tables are not followed: %s", problem)
            self._said = problem
            await asyncio.sleep(FIRST_S if problem else EVERY_S)

    async def _follow(self, address: str) -> str:
        try:
            for name, code in ASKED:
                take_table(self._broker, name, await self._ask(address, code))
        except (RemotingError, WireError, ValueError, TypeError) as error:
            return str(error)
        return ""

    async def _ask(self, address: str, code: RequestCode) -> dict[str, Any]:
        channel = await self._pool.get(address)
        response = await channel.request(request(code), TIMEOUT_S)
        if response.code != ResponseCode.SUCCESS:
            raise ValueError(f"{code.name} at {address}: {response.remark or response.code}")
        data = fastjson.loads(response.body) if response.body else {}
        if not isinstance(data, dict):
            raise ValueError(f"{code.name} at {address} answers no JSON object")
        return data
