"""Where the queues of a topic are: route data as name servers send it, kept fresh, and the next queue to use.

No input or output here: bodies come in as bytes, the time as a number, so that every rule is tested alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from orbitmq.wire import fastjson
from orbitmq.wire.codes import Perm
from orbitmq.wire.errors import BadBody, WireError
from orbitmq.wire.fastjson import MessageQueue

MASTER_ID: Final = 0
ROUTE_MAX_AGE_MS: Final = 30_000
AUTO_CREATE_QUEUES: Final = 4


@dataclass(frozen=True, slots=True)
class QueueData:
    """How many queues of a topic one broker has, and what may be done with them."""

    broker: str
    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int = 0

    @property
    def readable(self) -> bool:
        return bool(self.perm & Perm.READ)

    @property
    def writable(self) -> bool:
        return bool(self.perm & Perm.WRITE)


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The members of one broker name: id 0 is the master, the others are slaves."""

    name: str
    cluster: str
    addrs: Mapping[int, str]

    @property
    def master(self) -> str | None:
        return self.addrs.get(MASTER_ID)

    @property
    def readable_addr(self) -> str | None:
        """The master, or the slave with the lowest id when there is no master."""
        return self.addrs[min(self.addrs)] if self.addrs else None


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Everything a client knows about the places of one topic."""

    topic: str
    queues: tuple[QueueData, ...]
    brokers: Mapping[str, BrokerData]
    order_conf: str = ""

    def broker(self, name_or_addr: str) -> BrokerData | None:
        """The broker with this name, or with a member at this address."""
        return self.brokers.get(name_or_addr) or next(
            (broker for broker in self.brokers.values() if name_or_addr in broker.addrs.values()), None
        )

    def located_queues(self) -> list[QueueData]:
        """The brokers' shares of the topic by broker name; a share without a known broker is of no use."""
        return sorted(
            (data for data in self.queues if data.broker in self.brokers), key=lambda data: data.broker
        )

    def publish_queues(self) -> tuple[MessageQueue, ...]:
        """Queues that take messages, in the order every client uses: by broker name, then queue id."""
        if self.order_conf:
            return tuple(
                MessageQueue(self.topic, name, queue_id)
                for name, count in _parse_order_conf(self.order_conf)
                for queue_id in range(count)
            )
        return tuple(
            MessageQueue(self.topic, data.broker, queue_id)
            for data in self.located_queues()
            if data.writable and self.brokers[data.broker].master
            for queue_id in range(data.write_queues)
        )

    def read_queues(self) -> tuple[MessageQueue, ...]:
        """Queues that give messages, in the same order."""
        return tuple(
            MessageQueue(self.topic, data.broker, queue_id)
            for data in self.located_queues()
            if data.readable
            for queue_id in range(data.read_queues)
        )

    def masters(self) -> dict[str, str]:
        """Broker name to address, for the brokers of this topic that have a master."""
        return {
            data.broker: master
            for data in self.located_queues()
            if (master := self.brokers[data.broker].master)
        }

    @property
    def lacks_a_master(self) -> bool:
        """Some queues can be read at a slave and not be sent to: a master may be on its way."""
        return any(self.brokers[data.broker].master is None for data in self.located_queues())

    def as_template_for(self, topic: str) -> TopicRoute:
        """The route a topic will have once its first message has created it from this default topic."""
        queues = tuple(
            QueueData(
                data.broker,
                min(AUTO_CREATE_QUEUES, data.read_queues),
                min(AUTO_CREATE_QUEUES, data.read_queues),
                data.perm & ~Perm.INHERIT,
            )
            for data in self.queues
        )
        return TopicRoute(topic, queues, self.brokers)


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """Every cluster with its brokers, as one name server sees them now."""

    clusters: Mapping[str, tuple[str, ...]]
    brokers: Mapping[str, BrokerData]

    def of_cluster(self, cluster: str | None) -> tuple[BrokerData, ...]:
        """The brokers of one cluster, or of all clusters, by name."""
        names = self.brokers if cluster is None else self.clusters.get(cluster, ())
        return tuple(self.brokers[name] for name in sorted(names) if name in self.brokers)


@dataclass(slots=True)
class RouteCache:
    """The last route of each topic and when it was learnt."""

    max_age_ms: int = ROUTE_MAX_AGE_MS
    on_change: Callable[[TopicRoute], None] | None = None
    """Called with a route that was learnt and is new, or differs from the one before."""
    _entries: dict[str, tuple[int, TopicRoute]] = field(default_factory=dict)

    def fresh(self, topic: str, now_ms: int) -> TopicRoute | None:
        entry = self._entries.get(topic)
        if entry is None or now_ms - entry[0] >= self.max_age_ms:
            return None
        return entry[1]

    def stale(self, topic: str) -> TopicRoute | None:
        """The last known route of any age: better than none when no name server answers."""
        entry = self._entries.get(topic)
        return entry[1] if entry else None

    def put(self, route: TopicRoute, now_ms: int) -> bool:
        """Keeps a route and tells whether it differs from the one before."""
        before = self.stale(route.topic)
        self._entries[route.topic] = (now_ms, route)
        if before == route:
            return False
        if self.on_change is not None:
            self.on_change(route)
        return True

    def forget(self, topic: str) -> None:
        self._entries.pop(topic, None)

    def all(self) -> list[TopicRoute]:
        """The last known route of every topic."""
        return [route for _, route in self._entries.values()]


class RoundRobin:
    """Gives queues in turn from a random start; avoids brokers that just failed while others are left."""

    def __init__(self, rng: Random) -> None:
        self._next = rng.randrange(1 << 16)

    def choose(self, queues: Sequence[MessageQueue], avoid: Iterable[str] = ()) -> MessageQueue:
        """The next queue; `queues` must not be empty."""
        avoided = frozenset(avoid)
        start = self._next
        self._next += 1
        if avoided:
            for step in range(len(queues)):
                queue = queues[(start + step) % len(queues)]
                if queue.broker_name not in avoided:
                    self._next = start + step + 1
                    return queue
        return queues[start % len(queues)]


def parse_route(topic: str, body: bytes) -> TopicRoute:
    """TopicRouteData, in the strict or in the bare-key form."""
    data = _object(body, "route of topic " + topic)
    try:
        queues = tuple(
            QueueData(
                str(item["brokerName"]),
                int(item["readQueueNums"]),
                int(item["writeQueueNums"]),
                int(item["perm"]),
                int(item.get("topicSysFlag") or 0),
            )
            for item in data.get("queueDatas") or ()
        )
        brokers = {str(item["brokerName"]): _broker(item) for item in data.get("brokerDatas") or ()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadBody(f"route of topic {topic} is not understood: {error!r}") from error
    return TopicRoute(topic, queues, brokers, str(data.get("orderTopicConf") or ""))


def parse_cluster_map(body: bytes) -> ClusterMap:
    """ClusterInfo."""
    data = _object(body, "cluster information")
    try:
        brokers = {str(name): _broker(item) for name, item in (data.get("brokerAddrTable") or {}).items()}
        clusters = {
            str(name): tuple(sorted(map(str, members)))
            for name, members in sorted((data.get("clusterAddrTable") or {}).items())
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadBody(f"cluster information is not understood: {error!r}") from error
    return ClusterMap(clusters, brokers)


def _broker(item: Mapping[str, Any]) -> BrokerData:
    addrs = {int(broker_id): str(addr) for broker_id, addr in (item.get("brokerAddrs") or {}).items()}
    return BrokerData(str(item["brokerName"]), str(item.get("cluster") or ""), dict(sorted(addrs.items())))


def _object(body: bytes, what: str) -> dict[str, Any]:
    try:
        data = fastjson.loads(body)
    except WireError as error:
        raise BadBody(f"{what} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadBody(f"{what} is not a JSON object")
    return data


def _parse_order_conf(text: str) -> list[tuple[str, int]]:
    """`broker-a:4;broker-b:4`; an entry without a number of queues names no queue."""
    pairs = []
    for entry in text.split(";"):
        name, _, count = entry.strip().partition(":")
        if name and count.isdigit():
            pairs.append((name, int(count)))
    return pairs
