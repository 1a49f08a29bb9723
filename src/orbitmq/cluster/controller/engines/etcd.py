"""The engine for controllers that must survive themselves: several of them on one etcd cluster.

A state is swapped only if its key still has the revision that was read, AND the leadership key is still the one this
controller made: a controller that was frozen while another took over cannot change anything any more.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from orbitmq.cluster.controller.engines import EngineFailed, Hold
from orbitmq.cluster.controller.state import GroupState, Stored, decode_state, encode_state

T = TypeVar("T")

LEADER_KEY: Final = "leader"
GROUPS: Final = "groups/"
# Of the time etcd grants, the part that is relied on: its clock and ours may differ in speed.
RELIED_ON: Final = 0.9
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024


class EtcdEngine:
    """`clock_ms` is the boot clock: it goes on while the machine sleeps."""

    def __init__(
        self, addresses: Sequence[str], prefix: str, ttl_ms: int, clock_ms: Callable[[], float]
    ) -> None:
        self.name = f"etcd {';'.join(addresses)} {prefix}"
        self._addresses = list(addresses)
        self._prefix = prefix if prefix.endswith("/") else prefix + "/"
        self._leader_key = (self._prefix + LEADER_KEY).encode()
        self._ttl_s = max(2, math.ceil(ttl_ms / 1000))  # whole seconds, and etcd grants no less than two
        self._timeout_s = self._ttl_s / 4
        self._clock_ms = clock_ms
        self._clients: list[Any] = []
        self._first = 0
        self._lease: int | None = None
        self._term = 0
        """The revision at which this controller made the leadership key; 0: it is not its own."""

    async def open(self) -> None:
        try:
            import aetcd  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError as error:
            raise EngineFailed(
                "the etcd engine needs the package aetcd; install it with `pip install 'orbitmq[etcd]'`"
            ) from error
        self._errors = (aetcd.ClientError, OSError, TimeoutError, asyncio.TimeoutError)
        self._tx = aetcd.client.Transactions()
        options = {"grpc.max_receive_message_length": MAX_MESSAGE_BYTES}
        for address in self._addresses:
            host, _, port = address.rpartition(":")
            # A node that was away must be tried again at once, not after gRPC's usual two minutes.
            quick = {"grpc.initial_reconnect_backoff_ms": 100, "grpc.max_reconnect_backoff_ms": 500}
            self._clients.append(
                aetcd.Client(host, int(port), timeout=self._timeout_s, options={**options, **quick})
            )

    async def close(self) -> None:
        try:
            if self._lease is not None:
                await self._try(lambda client: client.revoke_lease(self._lease))
        except EngineFailed:
            self._lease = None  # it ends by itself
        for client in self._clients:
            await client.close()

    async def hold(self, address: str) -> Hold:
        sent_ms = self._clock_ms()
        if self._lease is not None and not await self._refresh(self._lease):
            self._lease, self._term = None, 0
        if self._lease is None:
            sent_ms = self._clock_ms()
            lease = await self._try(lambda client: client.lease(self._ttl_s))
            self._lease = int(lease.id)
        if not self._term:
            other = await self._campaign(self._lease, address)
            if other is not None:
                return Hold(False, 0, other)
        return Hold(True, sent_ms + self._ttl_s * 1000 * RELIED_ON, address)

    async def load_all(self) -> dict[str, Stored]:
        prefix = self._prefix + GROUPS
        found = await self._try(lambda client: client.get_prefix(prefix.encode()))
        stored: dict[str, Stored] = {}
        for row in found:
            key = row.key.decode()[len(prefix) :]
            stored[key] = Stored(decode_state(key, row.value), row.mod_revision)
        return stored

    async def load(self, key: str) -> Stored | None:
        row = await self._try(lambda client: client.get(self._key(key)))
        return None if row is None else Stored(decode_state(key, row.value), row.mod_revision)

    async def swap(self, key: str, state: GroupState, expected: int | None) -> int | None:
        """Asked of one node only: a swap of which nobody knows how it ended must not be tried again elsewhere."""
        name, tx = self._key(key), self._tx
        # A key that does not exist has revision 0 in a comparison.
        compare = [tx.mod(name) == (expected or 0), tx.create(self._leader_key) == self._term]
        success = [tx.put(name, encode_state(state)), tx.get(name)]
        client = self._clients[self._first]
        done, found = await self._ask(client, lambda it: it.transaction(compare, success, []))
        return int(found[1][0][1].mod_revision) if done else None

    async def _refresh(self, lease: int) -> bool:
        answer = await self._try(lambda client: client.refresh_lease(lease))
        return answer is not None and answer.TTL > 0

    async def _campaign(self, lease: int, address: str) -> str | None:
        """None: this controller is the active one now. Otherwise the address of the one that is."""
        tx, key = self._tx, self._leader_key
        done, found = await self._try(
            lambda client: client.transaction(
                [tx.create(key) == 0], [tx.put(key, address.encode(), lease), tx.get(key)], [tx.get(key)]
            )
        )
        rows = found[-1]
        if not rows:
            return ""
        value, row = rows[0]
        # An earlier try of this very controller, whose answer got lost, shows by its lease.
        if done or row.lease == lease:
            self._term = row.create_revision
            return None
        return bytes(value).decode()

    async def _try(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        """Asks the nodes in turn, beginning with the one that answered last. Only for what may be done twice."""
        problems: list[str] = []
        count = len(self._clients)
        for index in itertools.islice(itertools.cycle(range(count)), self._first, self._first + count):
            try:
                answer = await self._ask(self._clients[index], ask)
            except EngineFailed as error:
                problems.append(f"{self._addresses[index]}: {error}")
            else:
                self._first = index
                return answer
        raise EngineFailed("no etcd node answers: " + "; ".join(problems))

    async def _ask(self, client: Any, ask: Callable[[Any], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await ask(client)
        except self._errors as error:
            raise EngineFailed(str(error) or f"no answer within {self._timeout_s:g} s") from error

    def _key(self, key: str) -> bytes:
        return (self._prefix + GROUPS + key).encode()
