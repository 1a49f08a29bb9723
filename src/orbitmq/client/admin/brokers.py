"""Brokers: what is running, how it does, and its settings."""

from __future__ import annotations

import msgspec

from orbitmq.client.admin.targets import body_object, change_each, masters_of
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import BadRequest, NotFound, OrbitMQError
from orbitmq.properties_text import PropertiesError, dump_properties, load_properties
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import request


class BrokerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One registered broker. Figures are None when it did not tell them, and `problem` says why."""

    cluster: str
    broker: str
    broker_id: int
    addr: str
    version: str | None = None
    in_tps: float | None = None
    out_tps: float | None = None
    stored_today: int | None = None
    delivered_today: int | None = None
    disk_ratio: float | None = None
    earliest_message_ms: int | None = None
    problem: str | None = None


async def broker_statuses(cluster: Cluster, *, cluster_name: str | None = None) -> list[BrokerStatus]:
    """Every registered broker, masters and slaves, with its main figures."""
    known = await cluster.cluster_map()
    if cluster_name is not None and cluster_name not in known.clusters:
        names = ", ".join(known.clusters) or "none"
        raise NotFound(f"no cluster is called '{cluster_name}'", hint=f"registered clusters: {names}")
    rows = []
    for broker in known.of_cluster(cluster_name):
        for broker_id, addr in broker.addrs.items():
            identity = BrokerStatus(
                cluster=broker.cluster, broker=broker.name, broker_id=broker_id, addr=addr
            )
            rows.append(await _with_figures(cluster, identity))
    return sorted(rows, key=lambda row: (row.cluster, row.broker, row.broker_id))


class BrokerCleaned(msgspec.Struct, frozen=True, kw_only=True):
    """What one broker deleted when asked to clean. Figures are None from brokers that do not tell them."""

    broker: str
    log_files: int | None
    queue_files: int | None
    index_files: int | None
    disk_ratio: float | None


async def clean_brokers(
    cluster: Cluster, *, cluster_name: str | None = None, broker: str | None = None
) -> list[BrokerCleaned]:
    """Has brokers delete now what expired: log files first, then queue files that pointed there."""
    done: list[BrokerCleaned] = []

    async def clean(name: str, addr: str) -> None:
        told = (await cluster.request(addr, request(RequestCode.DELETE_EXPIRED_COMMITLOG))).ext
        queues = (await cluster.request(addr, request(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE))).ext
        queue_counts = [_integer(part.get("queueFiles")) for part in (told, queues)]
        known = [count for count in queue_counts if count is not None]
        done.append(
            BrokerCleaned(
                broker=name,
                log_files=_integer(told.get("logFiles")),
                queue_files=sum(known) if known else None,
                index_files=_integer(told.get("indexFiles")),
                disk_ratio=_first_number(told.get("diskRatio")),
            )
        )

    await change_each(await masters_of(cluster, cluster_name=cluster_name, broker=broker), clean)
    return sorted(done, key=lambda row: row.broker)


async def broker_runtime(cluster: Cluster, addr: str) -> dict[str, str]:
    """Every figure a broker tells about itself, by the names it uses."""
    response = await cluster.request(addr, request(RequestCode.GET_BROKER_RUNTIME_INFO))
    table = body_object(response.body, "the broker's figures").get("table") or {}
    return {str(name): str(value) for name, value in sorted(table.items())}


async def broker_config(cluster: Cluster, addr: str) -> dict[str, str]:
    """Every setting of a broker."""
    response = await cluster.request(addr, request(RequestCode.GET_BROKER_CONFIG))
    try:
        settings = load_properties(response.body.decode())
    except (PropertiesError, UnicodeDecodeError) as error:
        raise OrbitMQError(
            f"the settings of {addr} are not understood: {error}", hint="check that the address is a broker"
        ) from error
    return dict(sorted(settings.items()))


async def update_broker_config(cluster: Cluster, addr: str, changes: dict[str, str]) -> None:
    """Changes settings of a running broker; it also writes them to its configuration file."""
    if not changes:
        raise BadRequest("no setting is given", hint="pass at least one key=value")
    body = dump_properties(changes).encode()
    await cluster.request(addr, request(RequestCode.UPDATE_BROKER_CONFIG, body=body))


async def set_broker_writable(cluster: Cluster, broker: str, writable: bool) -> dict[str, int]:
    """Takes a broker's topics out of the write routes or puts them back; name server to topics changed."""
    known = (await cluster.cluster_map()).brokers
    if broker not in known:
        names = ", ".join(sorted(known)) or "none"
        raise NotFound(f"no broker is called '{broker}'", hint=f"registered brokers: {names}")
    code = RequestCode.ADD_WRITE_PERM_OF_BROKER if writable else RequestCode.WIPE_WRITE_PERM_OF_BROKER
    field = "addTopicCount" if writable else "wipeTopicCount"
    answers = await cluster.tell_namesrvs(lambda: request(code, {"brokerName": broker}))
    return {addr: int(answer.ext.get(field) or 0) for addr, answer in answers.items()}


async def _with_figures(cluster: Cluster, identity: BrokerStatus) -> BrokerStatus:
    try:
        figures = await broker_runtime(cluster, identity.addr)
    except OrbitMQError as error:
        return msgspec.structs.replace(identity, problem=str(error))
    earliest = _integer(figures.get("earliestMessageTimeStamp"))
    return msgspec.structs.replace(
        identity,
        version=figures.get("brokerVersionDesc"),
        in_tps=_first_number(figures.get("putTps")),
        out_tps=_first_number(figures.get("getTransferedTps") or figures.get("getTransferredTps")),
        stored_today=_difference(figures, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        delivered_today=_difference(figures, "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
        disk_ratio=_first_number(figures.get("commitLogDiskRatio")),
        earliest_message_ms=earliest if earliest and earliest > 0 else None,
    )


def _first_number(text: str | None) -> float | None:
    """The first of the three averages in `10s 60s 600s`; later ones may be missing."""
    parts = (text or "").split()
    try:
        return float(parts[0])
    except (IndexError, ValueError):
        return None


def _integer(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None


def _difference(figures: dict[str, str], now: str, before: str) -> int | None:
    high, low = _integer(figures.get(now)), _integer(figures.get(before))
    return None if high is None or low is None else high - low
