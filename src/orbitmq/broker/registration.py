"""The broker's registrar: tells every name server what this broker serves, and again when that changes.

Each name server has a link of its own (connection, worker task, back-off), so one that is down or slow
delays nobody. A link sends all topics when its connection is new and once per period; in between a changed
topic goes out alone and at once. A single topic is only ever sent over a connection on which all topics were
accepted before: a name server that restarted would otherwise take the one topic for all of them, because both
carry the same data version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from orbitmq.broker.registration_link import Answer, NameServerLink
from orbitmq.wire import fastjson, register_body
from orbitmq.wire.bodies import RegisterBrokerBody

PERIOD_S: Final = 30.0
TIMEOUT_S: Final = 6.0
FIRST_RETRY_S: Final = 1.0

# A TopicConfigSerializeWrapper: {"dataVersion": {...}, "topicConfigTable": {name: {...}}}.
Wrapper = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    cluster: str
    name: str
    broker_id: int
    addr: str
    ha_addr: str


@dataclass(frozen=True, slots=True)
class LinkState:
    """How it stands with one name server; `error` says why it is not registered there."""

    addr: str
    registered: bool
    error: str


class Registrar:
    """Keeps the broker registered. `identity` may be replaced; `register_soon` then tells everybody."""

    def __init__(
        self,
        name_servers: Sequence[str],
        identity: BrokerIdentity,
        snapshot: Callable[[], Wrapper],
        *,
        period_s: float = PERIOD_S,
        timeout_s: float = TIMEOUT_S,
        retry_s: float = FIRST_RETRY_S,
        compressed: bool = False,
        force_register: bool = True,
        on_answer: Callable[[Registrar], None] | None = None,
        may_register: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_register`: a master whose lease has run out must not tell clients to come."""
        self.identity = identity
        self.may_register = may_register
        self.period_s = period_s
        self.timeout_s = timeout_s
        self.retry_s = retry_s
        self.compressed = compressed
        self.force_register = force_register
        self._snapshot = snapshot
        self._on_answer = on_answer
        self._links = {addr: NameServerLink(self, addr) for addr in name_servers}
        self._ticker: asyncio.Task[None] | None = None
        # Links that register for the same reason send the same body; each new reason makes a new one.
        self._reason = 0
        self._full: tuple[int, bytes, bytes] = (0, b"", b"")

    async def start(self) -> None:
        """Registers everywhere; returns when each name server has answered or failed once."""
        for link in self._links.values():
            link.start()
        self._ticker = asyncio.create_task(self._tick(), name="register-period")
        await self.register_all()

    async def stop(self, *, unregister: bool = True) -> None:
        """Unregisters from the name servers that are connected; the others have already forgotten us.

        Without `unregister` the connections are only closed: another broker may have our place by now, and a name
        server of Java's would take it from that one.
        """
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
            self._ticker = None
        await asyncio.gather(*(link.stop(unregister=unregister) for link in self._links.values()))

    async def set_name_servers(self, addrs: Sequence[str]) -> None:
        """Follows a changed list: registers with new ones, leaves those that are no longer named."""
        removed = [link for addr, link in self._links.items() if addr not in addrs]
        self._links = {addr: self._links.get(addr) or NameServerLink(self, addr) for addr in addrs}
        if self._ticker is not None:
            for link in self._links.values():
                link.start()
        await asyncio.gather(*(link.stop() for link in removed))

    async def register_all(self) -> dict[str, str]:
        """Sends all topics to all name servers now; returns what went wrong by address, "" if nothing did."""
        self._reason += 1
        attempts = {addr: link.want_all(query_first=False) for addr, link in self._links.items()}
        if attempts:
            await asyncio.wait(attempts.values(), timeout=2 * self.timeout_s)
        return {
            addr: attempt.result() if attempt.done() and not attempt.cancelled() else "still under way"
            for addr, attempt in attempts.items()
        }

    def register_soon(self) -> None:
        """Sends all topics to all name servers without waiting: identity or permissions have changed."""
        self._reason += 1
        for link in self._links.values():
            link.want_all(query_first=False)

    async def register_topic(self, wrapper: Wrapper, wait_s: float = 1.0) -> None:
        """As `register_topic_soon`, and waits until the reachable name servers know it, so a route exists."""
        sent = [link.want_topics(wrapper) for link in self._links_after_change()]
        waiting = [each for each in sent if each is not None]
        if waiting:
            await asyncio.wait(waiting, timeout=wait_s)

    def register_topic_soon(self, wrapper: Wrapper) -> None:
        """Sends changed topics; the wrapper holds only these, with the data version of the whole table."""
        for link in self._links_after_change():
            link.want_topics(wrapper)

    @property
    def master_addr(self) -> str | None:
        """Where a slave finds its master; the last known value stays while name servers are away."""
        return next((a.master_addr for a in self._answers() if a.master_addr), None)

    @property
    def ha_server_addr(self) -> str | None:
        return next((a.ha_server_addr for a in self._answers() if a.ha_server_addr), None)

    @property
    def order_config(self) -> dict[str, str]:
        """Topics with a fixed queue order, from the name servers' key-value store."""
        return next((dict(a.order_config) for a in self._answers() if a.order_config), {})

    def states(self) -> list[LinkState]:
        return [LinkState(addr, link.registered, link.error) for addr, link in self._links.items()]

    def _answers(self) -> list[Answer]:
        return [link.answer for link in self._links.values() if link.answer is not None]

    def _links_after_change(self) -> list[NameServerLink]:
        self._reason += 1
        return list(self._links.values())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self.period_s)
            self._reason += 1
            for link in self._links.values():
                link.want_all(query_first=not self.force_register)

    def full_body(self) -> bytes:
        reason, plain_before, body = self._full
        if reason != self._reason:
            plain = _plain_body(self._snapshot())
            # Compressing ten thousand topics costs more than all the rest, and mostly nothing has changed.
            if plain != plain_before:
                body = self._packed(plain)
            self._full = (self._reason, plain, body)
        return body

    def data_version(self) -> bytes:
        return fastjson.dumps(self._snapshot()["dataVersion"])

    def partial_body(self, wrapper: Wrapper) -> bytes:
        return self._packed(_plain_body(wrapper))

    def _packed(self, plain: bytes) -> bytes:
        if not self.compressed:
            return plain
        return register_body.encode(msgspec.json.decode(plain, type=RegisterBrokerBody), compressed=True)

    def answered(self) -> None:
        if self._on_answer is not None:
            self._on_answer(self)


def _plain_body(wrapper: Wrapper) -> bytes:
    # All keys are texts in Java's order already, so msgspec writes the bytes fastjson would, much faster.
    return msgspec.json.encode({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
