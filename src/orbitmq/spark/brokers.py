"""The cluster as a blocking reader sees it: name servers, routes, and one connection to each address in use."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from orbitmq.client.cluster import parse_namesrv
from orbitmq.client.errors import from_response
from orbitmq.client.routes import MASTER_ID, TopicRoute, parse_route
from orbitmq.spark.connection import Answer, Connection
from orbitmq.spark.errors import BrokerLost, SourceError, explained
from orbitmq.wire import fastjson
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.errors import WireError
from orbitmq.wire.fastjson import MessageQueue


class Brokers:
    """Connections are opened when they are needed; close it (or use it as a context manager) when done."""

    def __init__(self, namesrv: str, timeout_s: float) -> None:
        self._namesrvs = list(parse_namesrv(namesrv))
        self._timeout_s = timeout_s
        self._connections: dict[str, Connection] = {}
        self._routes: dict[str, TopicRoute] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()

    def connection(self, addr: str) -> Connection:
        known = self._connections.get(addr)
        if known is None:
            known = self._connections[addr] = Connection(addr, self._timeout_s)
        return known

    def drop(self, addr: str) -> None:
        """After an error: the next use connects anew."""
        known = self._connections.pop(addr, None)
        if known is not None:
            known.close()

    def ask(self, addr: str, command: Command, *accept: int) -> Answer:
        return self.ask_all([(addr, command)], *accept)[0]

    def ask_all(self, requests: Sequence[tuple[str, Command]], *accept: int) -> list[Answer]:
        """All requests are under way before the first answer is awaited; answers in the order of the requests.

        Raises for codes other than success and those accepted.
        """
        by_addr: dict[str, list[int]] = {}
        for index, (addr, _) in enumerate(requests):
            by_addr.setdefault(addr, []).append(index)
        answers: dict[int, Answer] = {}
        for addr, indexes in by_addr.items():
            try:
                connection = self.connection(addr)
                opaques = connection.send(*(requests[index][1] for index in indexes))
                for index, opaque in zip(indexes, opaques, strict=True):
                    answers[index] = connection.receive(opaque)
            except BrokerLost:
                self.drop(addr)
                raise
        for index, (addr, command) in enumerate(requests):
            code = answers[index].code
            if code != ResponseCode.SUCCESS and code not in accept:
                raise explained(from_response(command.code, code, answers[index].remark, addr))
        return [answers[index] for index in range(len(requests))]

    def ask_namesrv(self, command: Command, *accept: int) -> Answer:
        """The first name server that answers; one that does not goes to the end of the row."""
        failures: list[str] = []
        for addr in list(self._namesrvs):
            try:
                return self.ask(addr, command, *accept)
            except BrokerLost as error:
                failures.append(str(error))
                self._namesrvs.append(self._namesrvs.pop(0))
        raise BrokerLost(
            "no name server answers: " + "; ".join(failures),
            hint="check the option namesrv, or start a server with `orbitmq server`",
        )

    def topics(self) -> list[str]:
        answer = self.ask_namesrv(request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        body: Any = fastjson.loads(answer.body.tobytes())
        return sorted(map(str, body.get("topicList") or ())) if isinstance(body, dict) else []

    def find_route(self, topic: str, *, refresh: bool = False) -> TopicRoute | None:
        if not refresh and topic in self._routes:
            return self._routes[topic]
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer = self.ask_namesrv(
            request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext), ResponseCode.TOPIC_NOT_EXIST
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            self._routes.pop(topic, None)
            return None
        try:
            route = parse_route(topic, answer.body.tobytes())
        except WireError as error:
            raise SourceError(f"the name server's answer is not understood: {error}") from error
        self._routes[topic] = route
        return route

    def members(self, queue: MessageQueue) -> dict[int, str]:
        """Addresses that can serve a queue, the master first; empty while its broker is away."""
        route = self.find_route(queue.topic)
        broker = route.brokers.get(queue.broker_name) if route is not None else None
        return dict(sorted(broker.addrs.items())) if broker is not None else {}

    def master(self, queue: MessageQueue) -> str | None:
        return self.members(queue).get(MASTER_ID)

    def readable(self, queue: MessageQueue) -> str:
        """The master, or else a slave."""
        addrs = self.members(queue)
        if not addrs:
            raise not_registered(queue)
        return next(iter(addrs.values()))


def not_registered(queue: MessageQueue) -> BrokerLost:
    return BrokerLost(
        f"broker {queue.broker_name!r} of topic {queue.topic!r} is not registered at any name server",
        hint="wait until it is back",
    )
