"""Who else is there, asked before this broker takes its place in a group: one name and number, one process.

Two masters of one name would each take a part of the messages, two slaves of one number would take turns in the routes.
Name servers cannot refuse it, because a broker that moved to another address looks the same to them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from orbitmq.config import BrokerConfig, ConfigError, PropertiesError, load_properties
from orbitmq.net.channel import Channel
from orbitmq.net.errors import RemotingError
from orbitmq.wire import fastjson
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.errors import WireError

log = logging.getLogger("orbitmq.broker")

# Whoever does not answer within this time is taken for gone: a start must not hang on a dead machine.
ANSWER_S: Final = 1.0


async def ask(addr: str, command: Command, timeout_s: float = ANSWER_S) -> Command:
    """One question over a connection of its own. RemotingError when there is no answer."""
    channel = await Channel.connect(addr, timeout_s=timeout_s)
    try:
        return await channel.request(command, timeout_s)
    finally:
        await channel.aclose()


async def settings_of(addr: str) -> dict[str, str]:
    """What a broker, ours or Java's, says about itself; empty when it will not tell."""
    answer = await ask(addr, request(RequestCode.GET_BROKER_CONFIG))
    if answer.code != ResponseCode.SUCCESS:
        return {}
    try:
        return load_properties(answer.body.decode())
    except (UnicodeDecodeError, PropertiesError):
        return {}


@dataclass(frozen=True, slots=True)
class Members:
    """The registered brokers of one name, as one name server knows them."""

    namesrv: str
    cluster: str
    addrs: dict[int, str]


async def refuse_a_taken_place(config: BrokerConfig, own_addr: str) -> None:
    """Raises ConfigError when another living broker has the name and number of this one."""
    asked = (_members(namesrv, config.broker_name) for namesrv in config.namesrv_addresses)
    for members in await asyncio.gather(*asked):
        if members is None:
            continue
        others = {number: addr for number, addr in members.addrs.items() if addr != own_addr}
        if members.cluster != config.broker_cluster_name:
            await _refuse_another_cluster(config, members, others)
        elif config.broker_id in others:
            await _refuse_a_double(config, members.namesrv, others[config.broker_id])


async def _members(namesrv: str, name: str) -> Members | None:
    """None when the name is free there, or nobody answers: a broker may start before its name servers."""
    try:
        answer = await ask(namesrv, request(RequestCode.GET_BROKER_CLUSTER_INFO))
        table = fastjson.loads(answer.body) if answer.code == ResponseCode.SUCCESS else {}
        found = table["brokerAddrTable"].get(name) if isinstance(table, dict) and table else None
        if found is None:
            return None
        addrs = {int(number): str(addr) for number, addr in found["brokerAddrs"].items()}
        return Members(namesrv, str(found.get("cluster") or ""), addrs)
    except RemotingError as error:
        log.info("not known whether brokerName=%s is free: %s", name, error)
    except (WireError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("the answer of name server %s is not understood: %r", namesrv, error)
    return None


async def _refuse_a_double(config: BrokerConfig, namesrv: str, addr: str) -> None:
    name, number = config.broker_name, config.broker_id
    try:
        settings = await settings_of(addr)
    except RemotingError as error:
        log.info("%s, last registered as number %d of %s, is gone: %s", addr, number, name, error)
        return
    if (settings.get("brokerName", name), settings.get("brokerId", str(number))) != (name, str(number)):
        return  # another broker has got that address since
    if number:
        raise ConfigError(
            f"brokerId={number} of {name} is taken: {addr}, registered at {namesrv}, answers. Give this slave "
            "another brokerId, or stop that one"
        )
    raise ConfigError(
        f"brokerName={name} has a master already: {addr}, registered at {namesrv}, answers. Two masters with one "
        "name would each take a part of the messages. Stop that one, give this broker another brokerName, or make "
        "it a slave (brokerRole=SLAVE, brokerId=1)"
    )


async def _refuse_another_cluster(config: BrokerConfig, members: Members, others: dict[int, str]) -> None:
    for addr in others.values():
        try:
            settings = await settings_of(addr)
        except RemotingError as error:
            log.info("%s of cluster %s is gone: %s", addr, members.cluster, error)
            continue
        if settings.get("brokerClusterName") == config.broker_cluster_name:
            continue  # it has moved over, and the name server will hear of it
        raise ConfigError(
            f"brokerName={config.broker_name} belongs to brokerClusterName={members.cluster}: {addr}, registered at "
            f"{members.namesrv}, answers; this broker has brokerClusterName={config.broker_cluster_name}. Give it "
            "that cluster's name, or another brokerName"
        )
