"""Random histories of delays, timers, cancellations, cleaning and crashes, against who is due when."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orbitmq.broker.timing.lookup import State
from orbitmq.store.disk import StrPath
from tests.broker.timing.world import QuickDisk, World

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Killed(BaseException):
    """The process ends here."""


class MortalDisk(QuickDisk):
    """Ends the process in the middle of the n-th change, of which a part may have happened.

    Writes to the log happen or do not: what recovery makes of a torn record is the store's own matter.
    """

    def __init__(self) -> None:
        super().__init__()
        self._log: set[int] = set()
        self.left: int | None = None
        self.part = 0.0

    def _change(self) -> bool:
        if self.left is None:
            return False
        self.left -= 1
        if self.left > 0:
            return False
        if self.left < 0:
            raise Killed
        return True

    def pwrite(self, fd: int, data: ReadableBuffer, offset: int) -> None:
        if self._change():
            view = memoryview(data).cast("B")
            part = round(self.part) if fd in self._log else self.part
            super().pwrite(fd, view[: int(len(view) * part)], offset)
            raise Killed
        super().pwrite(fd, data, offset)

    def open_rw(self, path: StrPath, create: bool = False, size: int | None = None) -> int:
        fd = super().open_rw(path, create, size)
        (self._log.add if "commitlog" in str(path) else self._log.discard)(fd)
        return fd

    def rename(self, source: StrPath, target: StrPath) -> None:
        if self._change():
            raise Killed
        super().rename(source, target)

    def unlink(self, path: StrPath) -> None:
        if self._change():
            raise Killed
        super().unlink(path)

    def ftruncate(self, fd: int, size: int) -> None:
        if self._change():
            raise Killed
        super().ftruncate(fd, size)


class RememberingWorld(World):
    """Knows what was delivered, also when it has been cleaned since."""

    def __init__(self, path: Path, seen: set[str], **settings: Any) -> None:
        self.seen = seen
        super().__init__(path, **settings)

    def step(self) -> None:
        super().step()
        self.seen |= set(self.ids("TopicA")) | set(self.ids("%RETRY%g"))


class Timing(RuleBasedStateMachine):
    """`due` is what was promised; `unsure` what was being sent or cancelled when the process was killed."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.disk = MortalDisk()
        self.due: dict[str, int] = {}
        self.cancelled: set[str] = set()
        self.unsure: set[str] = set()
        self.seen: set[str] = set()
        self.kills = 0
        self.dead = False

    @initialize(sync_flush=st.booleans(), flush_every=st.integers(1, 20), near_limit=st.integers(1, 40))
    def begin(self, sync_flush: bool, flush_every: int, near_limit: int) -> None:
        self.world = RememberingWorld(
            self.path,
            self.seen,
            disk=self.disk,
            sync_flush=sync_flush,
            flush_every=flush_every,
            near_limit=near_limit,
            horizon_ms=500,
            log_file_bytes=8 << 10,
        )

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.disk.left = None
            if self.dead:
                self.world.start()
            self._check_the_end()
            self.world.crash()
        shutil.rmtree(self.path)

    def _live(self, action: str, *args: object) -> object:
        """Does it, or is killed while doing it."""
        try:
            return getattr(self.world, action)(*args)
        except Killed:
            self.disk.left = None
            self.kills += 1
            self.seen |= self._written()
            self.dead = True
            self.world.crash()
            return Killed

    def _written(self) -> set[str]:
        """Deliveries that reached the log just before the end."""
        return set(self.world.ids("TopicA")) | set(self.world.ids("%RETRY%g"))

    alive = precondition(lambda self: not self.dead)

    @alive
    @rule(delay_ms=st.one_of(st.integers(1, 50), st.integers(1, 5_000), st.integers(1, 200_000)))
    def send_timer(self, delay_ms: int) -> None:
        self._sent(self._live("put_timer", delay_ms), delay_ms)

    @alive
    @rule(level=st.integers(1, 4), retry=st.booleans())
    def send_level(self, level: int, retry: bool) -> None:
        delay_ms = self.world.settings.delay_levels_ms[level - 1]
        topic = "%RETRY%g" if retry else "TopicA"
        self._sent(self._live("put_level", level, topic), delay_ms)

    def _sent(self, result: object, delay_ms: int) -> None:
        msg_id = f"ID{self.world.sent:08d}"
        self.due[msg_id] = self.world.clock() + delay_ms
        if result is Killed:
            self.unsure.add(msg_id)

    @alive
    @rule(pick=st.integers(0, 1 << 30))
    def cancel(self, pick: int) -> None:
        if not self.due:
            return
        msg_id = sorted(self.due)[pick % len(self.due)]
        if self.kills and msg_id in self.seen:
            self.unsure.add(msg_id)  # delivered, but the process was killed before it could note that
        for topic in ("TopicA", "%RETRY%g"):
            state = self._live("cancel", msg_id, topic)
            if state is Killed:
                self.unsure.add(msg_id)
                return
            if state is State.WAITING:
                self.cancelled.add(msg_id)

    @alive
    @rule(count=st.integers(1, 30))
    def other_traffic(self, count: int) -> None:
        self._live("put_others", count)

    @alive
    @rule(passed_ms=st.one_of(st.integers(0, 100), st.integers(0, 3_000), st.integers(0, 60_000)))
    def time_passes(self, passed_ms: int) -> None:
        self._live("run_until", self.world.clock() + passed_ms)

    @alive
    @rule()
    def clean(self) -> None:
        self._live("clean")

    @alive
    @rule(changes=st.integers(1, 40), part=st.floats(0, 1))
    def kill_soon(self, changes: int, part: float) -> None:
        self.disk.left, self.disk.part = changes, part

    @alive
    @rule(orderly=st.booleans())
    def end(self, orderly: bool) -> None:
        self.disk.left = None
        if orderly:
            self.world.stop()
        else:
            self.world.crash()
        self.dead = True

    @precondition(lambda self: self.dead)
    @rule(away_ms=st.integers(0, 20_000))
    def start_again(self, away_ms: int) -> None:
        self.world.clock.now_ms += away_ms
        self.world.start()
        self.dead = False

    @invariant()
    def nothing_came_early_or_twice(self) -> None:
        if not hasattr(self, "world") or self.dead:
            return
        seen = [m for topic in ("TopicA", "%RETRY%g") for m in self.world.messages(topic)]
        for message in seen:
            msg_id = message.properties["UNIQ_KEY"]
            assert message.store_ms >= self.due[msg_id]
            assert msg_id not in self.cancelled or msg_id in self.unsure
        ids = [message.properties["UNIQ_KEY"] for message in seen]
        repeated = len(ids) - len(set(ids))
        assert repeated == 0 or self.kills, "only a kill may repeat deliveries"

    def _check_the_end(self) -> None:
        """Every promise is kept, whatever happened on the way."""
        self.world.run_until(max([self.world.clock(), *self.due.values()]) + 1)
        promised = set(self.due) - self.cancelled - self.unsure
        assert promised <= self.seen
        assert not self.seen & (self.cancelled - self.unsure)
        assert list(self.world.waiting()) == []


TestTiming = Timing.TestCase
TestTiming.settings = settings(
    max_examples=300,
    stateful_step_count=60,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
