"""Real controllers in processes of their own, and brokers that are only heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from orbitmq.wire.bodies import decode, encode
from orbitmq.wire.codes import OrbitCode, ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.controller_bodies import (
    LEAVING,
    MASTER,
    RESIGNED,
    SLAVE,
    STARTING,
    AlterInSync,
    ControllerState,
    GroupAnswer,
    ReplicaHeartbeat,
)
from scripts.serving import OrbitProcess, free_port
from tests.support.raw_client import RawClient

LIMIT_S = 30.0
READY = "OrbitMQ controller ready"


class ControllerProcess(OrbitProcess):
    """`orbitmq controller`, at the same port over `restart`."""

    def __init__(self, directory: Path, *options: str, lease_ms: int = 2000) -> None:
        self.port = free_port()
        self.addr = f"127.0.0.1:{self.port}"
        args = ["controller", "--port", str(self.port), "--data", str(directory), "--lease-ms", str(lease_ms)]
        args += ["--set", "controllerAddress=127.0.0.1"]
        super().__init__([*args, *options], ready=READY)

    def ask(self, code: int, body: bytes = b"") -> Command | None:
        """None when it does not answer."""

        async def main() -> Command | None:
            try:
                async with asyncio.timeout(2), RawClient(self.addr) as client:
                    return await client.ask(code, body=body)
            except (OSError, TimeoutError):
                return None

        return asyncio.run(main())

    def state(self) -> ControllerState | None:
        """None when it is not the active one."""
        answer = self.ask(OrbitCode.CONTROLLER_STATE)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return None
        return decode(ControllerState, answer.body)


class Puppet:
    """A broker without a store: says what it is, asks every controller, does what it is told."""

    def __init__(self, token: str, controllers: Sequence[str], broker: str = "b") -> None:
        self.token = token
        self.controllers = list(controllers)
        self.broker = broker
        self.runs = 1
        self.role, self.epoch = STARTING, 0
        self.served: list[int] = []
        self.answer: GroupAnswer | None = None

    def heartbeat(self) -> bytes:
        body = ReplicaHeartbeat(
            cluster="C",
            broker=self.broker,
            token=self.token,
            run=f"{self.token}-{self.runs}",
            role=self.role,
            epoch=self.epoch,
            address=f"{self.token}:1",
            ha_address=f"{self.token}:2",
            clock_ms=time.time_ns() // 1_000_000,
        )
        return encode(body)

    async def beat(self) -> GroupAnswer | None:
        """The active controller's word, taken to heart; None when nobody is active."""
        found = await self._ask(OrbitCode.CONTROLLER_HEARTBEAT, self.heartbeat())
        if found is None:
            return None
        assert found.code == ResponseCode.SUCCESS, found
        answer = self.answer = decode(GroupAnswer, found.body)
        if answer.master == answer.replica:
            if self.role not in (RESIGNED, LEAVING) or answer.epoch > self.epoch:
                if answer.epoch > self.epoch:
                    self.served.append(answer.epoch)
                self.role, self.epoch = RESIGNED if answer.resign else MASTER, answer.epoch
        elif self.role != LEAVING and (answer.epoch > self.epoch or self.role == STARTING):
            self.role = SLAVE
        return answer

    async def alter(self, *in_sync: int) -> GroupAnswer:
        answer = self.answer
        assert answer is not None
        wish = AlterInSync(
            cluster="C",
            broker=self.broker,
            replica=answer.replica,
            epoch=answer.epoch,
            version=answer.version,
            in_sync=list(in_sync),
        )
        found = await self._ask(OrbitCode.ALTER_IN_SYNC, encode(wish))
        assert found is not None and found.code == ResponseCode.SUCCESS, found
        self.answer = decode(GroupAnswer, found.body)
        return self.answer

    def restart(self) -> None:
        self.runs += 1
        self.role = STARTING

    async def _ask(self, code: int, body: bytes) -> Command | None:
        for address in self.controllers:
            try:
                async with asyncio.timeout(1), RawClient(address) as client:
                    found = await client.ask(code, body=body)
            except (OSError, TimeoutError):
                continue
            if found.code not in (ResponseCode.NOT_ACTIVE_CONTROLLER, ResponseCode.SYSTEM_ERROR):
                return found
        return None


async def until_mastered(puppets: Sequence[Puppet], interval_s: float = 0.1) -> Puppet:
    """Beats for all of them until one is master and the others know it."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            answers = [await puppet.beat() for puppet in puppets]
            masters = {answer.master if answer else None for answer in answers}
            if len(masters) == 1 and None not in masters:
                return next(p for p in puppets if p.answer and p.answer.replica in masters)
            await asyncio.sleep(interval_s)


@contextlib.contextmanager
def ended(*processes: OrbitProcess) -> Iterator[None]:
    """However the test ends, they do, too."""
    try:
        yield
    finally:
        for process in processes:
            if process.running:
                process.kill()
