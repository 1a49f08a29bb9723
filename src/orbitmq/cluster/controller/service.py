"""The controller on a port: requests to the machine and back, states to the engine in between.

What the machine says is sent only while this controller is surely the active one. Questions about one group wait for
each other while a state of it is being stored; all others go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from orbitmq.cluster.controller.engines import EngineFailed, StateEngine
from orbitmq.cluster.controller.leadership import Leadership
from orbitmq.cluster.controller.machine import Machine, Rules
from orbitmq.cluster.controller.state import StateDamaged
from orbitmq.cluster.controller.steps import Answer, Refusal, Step, Store
from orbitmq.net.connection import Connection
from orbitmq.net.errors import RequestError
from orbitmq.net.limits import Limits
from orbitmq.net.listener import Listener
from orbitmq.net.service import RequestService
from orbitmq.wire.bodies import Body, decode, encode
from orbitmq.wire.codes import OrbitCode, ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.controller_bodies import AlterInSync, ControllerState, HandOver, ReplicaHeartbeat

log = logging.getLogger("orbitmq.controller")

TICK_S: Final = 0.1
HOLDS_PER_LEASE: Final = 5
MAX_TRIES: Final = 5
MAX_WAITING: Final = 20_000
# A heartbeat is well under a KiB; whoever announces a large frame is no broker.
LIMITS: Final = Limits(max_frame_bytes=64 * 1024, max_connections=20_000, idle_seconds=60.0)


class _Turn:
    """Questions about one group while a state of it is being stored."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class Controller(RequestService):
    """`clock_ms` is the boot clock, which goes on while the machine sleeps; `wall_ms` the one people read."""

    def __init__(
        self,
        engine: StateEngine,
        rules: Rules,
        clock_ms: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        super().__init__(
            {
                OrbitCode.CONTROLLER_HEARTBEAT: self._heartbeat,
                OrbitCode.ALTER_IN_SYNC: self._alter,
                OrbitCode.CONTROLLER_STATE: self._state,
                OrbitCode.HAND_OVER: self._hand_over,
            }
        )
        self.machine = Machine(rules)
        self.leadership = Leadership()
        self.address = ""
        self._engine = engine
        self._clock_ms = clock_ms
        self._wall_ms = wall_ms
        self._turns: dict[str, _Turn] = {}
        self._unsure: set[str] = set()
        """Groups of which a swap ended nobody knows how."""
        self._took_over = False
        self._problem = ""
        self._listener: Listener | None = None
        self._loops: list[asyncio.Task[None]] = []

    async def start(self, host: str, port: int, reachable_as: str) -> str:
        """Listens; returns the address others reach it by. Fails when the engine cannot be used at all."""
        await self._engine.open()
        try:
            self._listener = Listener(self, LIMITS)
            bound = await self._listener.start(host, port)
            self.address = f"{reachable_as}:{bound}"
            await self._try_to_hold()
        except BaseException:
            await self.stop()
            raise
        self._loops = [
            asyncio.create_task(self._hold_for_ever(), name="controller-leadership"),
            asyncio.create_task(self._tick_for_ever(), name="controller-tick"),
        ]
        return self.address

    @property
    def active(self) -> bool:
        return self._took_over and self.leadership.valid(self._clock_ms())

    async def stop(self) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        self._loops.clear()
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.stop()
        await self.stop_tasks()
        self.leadership.give_up()
        await self._engine.close()

    # --- requests ---------------------------------------------------------------------------------------------

    def _heartbeat(self, conn: Connection, command: Command) -> Command | Awaitable[Command]:
        beat = decode(ReplicaHeartbeat, command.body)
        received_ms = self._now_ms()
        return self._decide(
            command, beat.broker, lambda: self.machine.heartbeat(beat, received_ms, self._wall_ms())
        )

    def _alter(self, conn: Connection, command: Command) -> Command | Awaitable[Command]:
        wish = decode(AlterInSync, command.body)
        return self._decide(command, wish.broker, lambda: self.machine.alter(wish, self._now_ms()))

    def _hand_over(self, conn: Connection, command: Command) -> Command | Awaitable[Command]:
        wish = decode(HandOver, command.body)
        log.info(
            "%s wishes another master for %s: %s%s",
            conn.peer,
            wish.broker,
            "anyone in sync" if wish.to is None else f"replica {wish.to}",
            ", unclean if need be" if wish.unclean else "",
        )
        return self._decide(command, wish.broker, lambda: self.machine.hand_over(wish, self._now_ms()))

    def _state(self, conn: Connection, command: Command) -> Command:
        self._must_be_active()
        now_ms = self._now_ms()
        body = ControllerState(
            address=self.address,
            engine=self._engine.name,
            groups=self.machine.views(now_ms),
            lease_ms=self.machine.rules.lease_ms,
        )
        return command.reply(body=encode(body))

    def _decide(self, command: Command, key: str, decide: Callable[[], Step]) -> Command | Awaitable[Command]:
        """At once when nothing is to be stored, which is nearly always."""
        self._must_be_active()
        if key not in self._turns and key not in self._unsure:
            step = decide()
            if not isinstance(step, Store):
                return _reply(command, step)
        if len(self._tasks) >= MAX_WAITING:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"{MAX_WAITING} questions wait for {self._engine.name}; ask again later",
            )
        return self._decide_in_turn(command, key, decide)

    async def _decide_in_turn(self, command: Command, key: str, decide: Callable[[], Step]) -> Command:
        async with self._turn(key):
            try:
                step = await self._until_stored(key, decide)
            except (EngineFailed, StateDamaged) as error:
                log.error("%s: nothing can be decided: %s", key, error)
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR, f"the controller cannot decide: {error}"
                ) from error
        self._must_be_active()
        return _reply(command, step)

    async def _until_stored(self, key: str, decide: Callable[[], Step]) -> Step:
        for _ in range(MAX_TRIES):
            if key in self._unsure:
                await self._reload(key)
            self._must_be_active()
            step = decide()
            if not isinstance(step, Store):
                return step
            self._unsure.add(key)
            revision = await self._engine.swap(step.key, step.state, step.expected)
            if revision is None:
                continue
            self._unsure.discard(key)
            self._must_be_active()
            self.machine.stored(step.key, step.state, revision, self._now_ms())
            log.info("%s: %s", key, step.why)
            if step.answer_to is not None:
                return Answer(self.machine.answer_to(key, step.answer_to, self._now_ms()))
        raise EngineFailed(f"the state of {key} was changed by somebody else {MAX_TRIES} times in a row")

    async def _reload(self, key: str) -> None:
        stored = await self._engine.load(key)
        if stored is not None:
            # Under a new revision: a swap of before that is still on its way cannot take place any more.
            revision = await self._engine.swap(key, stored.state, stored.revision)
            if revision is None:
                raise EngineFailed(f"the state of {key} changes under this controller; try again")
            stored = stored._replace(revision=revision)
        self._unsure.discard(key)
        self.machine.reloaded(key, stored, self._now_ms())

    @contextlib.asynccontextmanager
    async def _turn(self, key: str) -> AsyncIterator[None]:
        turn = self._turns.setdefault(key, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[key]

    # --- leadership and time ----------------------------------------------------------------------------------

    def _must_be_active(self) -> None:
        if self.active:
            return
        other = self.leadership.address
        raise RequestError(ResponseCode.NOT_ACTIVE_CONTROLLER, "" if other == self.address else other)

    async def _hold(self) -> None:
        hold = await self._engine.hold(self.address)
        was_active = self.active
        self.leadership.observe(hold)
        if was_active and hold.active:
            return
        if self._took_over:
            log.warning(
                "this controller is not the active one any more; %s", _other(hold.address, self.address)
            )
        self._took_over = False
        if not hold.active:
            return
        known = await self._engine.load_all()
        self._unsure.clear()
        self.machine.take_over(known, self._now_ms())
        self._took_over = True
        log.info("this controller is the active one now: %d broker groups are known", len(known))

    async def _hold_for_ever(self) -> None:
        interval_s = self.machine.rules.lease_ms / 1000 / HOLDS_PER_LEASE
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self._try_to_hold()
            except StateDamaged as error:
                self._tell(str(error))

    async def _try_to_hold(self) -> None:
        """Engines come and go, and a controller that waits for one does no harm."""
        try:
            await self._hold()
        except EngineFailed as error:
            self._tell(str(error))
        else:
            self._problem = ""

    def _tell(self, problem: str) -> None:
        if problem != self._problem:
            log.error("%s", problem)
        self._problem = problem

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self.active:
                for notice in self.machine.tick(self._now_ms()):
                    log.warning("%s", notice)

    def _now_ms(self) -> int:
        return int(self._clock_ms())


def _reply(command: Command, step: Answer | Refusal | Store) -> Command:
    if isinstance(step, Refusal):
        return command.reply(step.code, remark=step.text, body=encode(step.body) if step.body else b"")
    assert isinstance(step, Answer), "what must be stored first is no answer"
    body: Body = step.body
    return command.reply(body=encode(body))


def _other(address: str, own: str) -> str:
    return f"{address} is" if address and address != own else "nobody is known to be"
