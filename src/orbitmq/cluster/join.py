"""The slave's side in a group with a controller: it greets, compares its log with the master's, and then follows it.

A log that has something the master has not must be cut first; that is for whoever owns the store, since it cannot be
done under readers. Tables come over the same connection, before the log whose records need them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orbitmq.cluster.epochs import EpochHistory, common_end
from orbitmq.cluster.frames import GROUP_HEAD, REPORT, TABLE
from orbitmq.cluster.greeting import GreetingReader, Hello, Refusal, Welcome, encode
from orbitmq.cluster.receive import RETRY_MS, MasterLink, Receiver
from orbitmq.store.errors import StoreError
from orbitmq.wire import fastjson

if TYPE_CHECKING:
    from struct import Struct

    from orbitmq.store.disk import Disk
    from orbitmq.store.follower import LogFollower

ApplyTable = Callable[[str, dict[str, Any]], Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class JoinTarget:
    """Who we are, and whom the controller named as the master of which epoch."""

    address: str
    cluster: str
    broker: str
    replica: int
    token: str
    epoch: int


class JoiningReceiver(Receiver):
    """`target` may change at any time; the connection to a former master is given up then.

    `on_cut` gets the offset up to which the log may stay, 0 when nothing may. Nothing is followed after that: the log
    is cut, and a new receiver made. `apply_table` takes over a table and returns what to wait for until it is saved.
    """

    NOBODY_KNOWS: ClassVar[str] = "the controller names no master"

    def __init__(
        self,
        follower: LogFollower,
        target: Callable[[], JoinTarget | None],
        disk: Disk,
        epochs_path: str,
        *,
        on_cut: Callable[[int], None],
        apply_table: ApplyTable,
        report_ms: int,
        silence_ms: int,
        retry_ms: int = RETRY_MS,
    ) -> None:
        super().__init__(
            follower, self._address, report_ms=report_ms, silence_ms=silence_ms, retry_ms=retry_ms
        )
        self._target = target
        self._disk = disk
        self._epochs_path = epochs_path
        self._on_cut = on_cut
        self.apply_table = apply_table
        self.confirm_offset = -1
        """What the master said last: no election takes away what lies before. -1 as long as none said anything."""

    def _address(self) -> str | None:
        target = self._target()
        return target.address if target is not None else None

    def _new_link(self, address: str) -> MasterLink:
        target = self._target()
        assert target is not None
        return JoinLink(self, target)

    def _objection(self, link: MasterLink) -> str:
        assert isinstance(link, JoinLink)
        return "" if self._target() == link.target else "the controller names another master"

    def hello(self, target: JoinTarget) -> Hello:
        history = EpochHistory.load(self._disk, self._epochs_path)
        end = self.follower.begin()
        if end and not history.entries:
            raise StoreError(
                "this store has messages that no master of a group wrote",
                "empty it so that it begins anew, or let it be the first broker of a new group",
            )
        return Hello(target.cluster, target.broker, target.replica, target.token, target.epoch, end, history)

    def welcomed(self, link: JoinLink, hello: Hello, welcome: Welcome) -> bool:
        """Whether the log goes on from where it stands; the master's history is its own from now on."""
        point = common_end(hello.history, hello.end, welcome.history, welcome.end)
        if point < max(welcome.start, self.follower.start + 1):
            point = 0  # nothing is left that could be gone on with
        if point < hello.end:
            self._over = True
            link.give_up(
                f"the log is the master's up to {point} and goes on here to {hello.end}: it must be cut"
            )
            self._on_cut(point)
            return False
        if welcome.history != hello.history:
            welcome.history.save(self._disk, self._epochs_path)
        self._following(link, link.target.address)
        return True

    def confirmed_by_master(self, offset: int) -> None:
        self.confirm_offset = offset
        self.follower.open_to(offset)


class JoinLink(MasterLink):
    HEAD: ClassVar[Struct] = GROUP_HEAD

    def __init__(self, receiver: JoiningReceiver, target: JoinTarget) -> None:
        super().__init__(receiver.follower, lambda link: None)
        self._receiver = receiver
        self._hello: Hello | None = None
        self._greeting: GreetingReader | None = GreetingReader()
        self._saving: deque[tuple[int, asyncio.Future[None] | None]] = deque()
        self.target = target

    def _begin(self) -> None:
        try:
            self._hello = self._receiver.hello(self.target)
        except (OSError, StoreError) as error:
            self.give_up(str(error))
            return
        if self._transport is not None:
            self._transport.write(encode(self._hello))

    def report(self, *, always: bool = False) -> None:
        if self._greeting is None:
            super().report(always=always)

    def _take(self, data: bytes) -> None:
        if self._greeting is not None:
            whole = self._greeting.feed(data)
            if whole is None:
                return
            greeting, data = whole
            if isinstance(greeting, Refusal):
                raise StoreError(f"it refuses: {greeting.reason}")
            if not isinstance(greeting, Welcome) or self._hello is None:
                raise StoreError("it does not greet as a master does")
            if greeting.epoch != self.target.epoch:
                raise StoreError(f"it is the master of epoch {greeting.epoch}, not {self.target.epoch}")
            if not self._receiver.welcomed(self, self._hello, greeting):
                return
            self._greeting = None
            # Where the stream begins; what is on the device is reported behind it, for the master to count.
            self._write(self._follower.position)
            super().report(always=True)
        super()._take(data)

    def _check(self, offset: int) -> None:
        if offset != TABLE:
            super()._check(offset)

    def _take_block(self, offset: int, data: bytes, *told: int) -> None:
        if offset == TABLE:
            self._take_table(data)
        else:
            super()._take_block(offset, data)
        self._receiver.confirmed_by_master(told[0])

    def _take_table(self, data: bytes) -> None:
        frame = fastjson.loads(data)
        fields = frame if isinstance(frame, dict) else {}
        seq, name, table = (fields.get(key) for key in ("seq", "table", "data"))
        if not isinstance(seq, int) or not isinstance(name, str) or not isinstance(table, dict):
            raise StoreError("a table without number, name or content came: this is no master")
        try:
            waiting = self._receiver.apply_table(name, table)
        except (ValueError, TypeError) as error:
            raise StoreError(f"the master's table {name} cannot be taken over: {error}") from error
        saving = None
        if waiting is not None:
            saving = asyncio.ensure_future(_finish(waiting))
            saving.add_done_callback(lambda done: self._report_saved())
        self._saving.append((seq, saving))
        self._report_saved()

    def _report_saved(self) -> None:
        """In the order in which they came: a number stands for all before it."""
        while self._saving and (self._saving[0][1] is None or self._saving[0][1].done()):
            seq, saving = self._saving.popleft()
            problem = saving.exception() if saving is not None and not saving.cancelled() else None
            if problem is not None or (saving is not None and saving.cancelled()):
                self.give_up(f"a table of the master cannot be saved: {problem or 'it was given up'}")
                return
            if self._transport is not None:
                self._transport.write(REPORT.pack(-seq))


async def _finish(waiting: Awaitable[None]) -> None:
    await waiting
