"""A store with the timing engine on a virtual clock, for tests that let hours pass in no time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orbitmq.broker.delays import DelayOffsets
from orbitmq.broker.send import Draft
from orbitmq.broker.timing import rules
from orbitmq.broker.timing.agenda import Agenda
from orbitmq.broker.timing.engine import Engine
from orbitmq.broker.timing.lookup import State
from orbitmq.broker.timing.records import cancelling
from orbitmq.store.consume_queue import UNIT
from orbitmq.store.disk import Disk, StrPath
from orbitmq.store.flush import InlineRunner, Runner
from orbitmq.store.message_store import MessageStore
from orbitmq.store.retention import RetentionRules
from orbitmq.store.settings import StoreSettings
from orbitmq.wire.message import Message, decode_record

START_MS = 1_800_000_000_000
DAY_MS = 86_400_000
MAX_DELAY_MS = 40 * DAY_MS


class Clock:
    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class QuickDisk(Disk):
    """Promises what it does not keep: none of these tests pulls the plug of the machine."""

    def fdatasync(self, fd: int) -> None:
        return

    def fsync_dir(self, path: StrPath) -> None:
        return


class World:
    """`crash` leaves the files as they are; `start` opens them again."""

    def __init__(
        self,
        path: Path,
        *,
        disk: Disk | None = None,
        runner: Runner | None = None,
        clock: Clock | None = None,
        log_file_bytes: int = 1 << 20,
        sync_flush: bool = True,
        index: bool = True,
        flush_every: int = 1 << 16,
        near_limit: int = 1 << 15,
        horizon_ms: int = 8_000,
        keep_ms: int = 0,
    ) -> None:
        self.clock = clock or Clock()
        self.disk = disk or QuickDisk()
        self.runner = runner or InlineRunner()
        self.offsets = DelayOffsets()
        self.retention = RetentionRules(keep_ms=keep_ms, max_used=2.0, force_used=2.0, refuse_used=2.0)
        self.flush_every = flush_every
        self.agenda = lambda: Agenda(horizon_ms=horizon_ms, near_limit=near_limit)
        self.settings = StoreSettings(
            str(path),
            commit_log_file_bytes=log_file_bytes,
            consume_queue_file_bytes=2000 * 20,
            index_slots=500,
            index_entries=400,
            index_enable=index,
            sync_flush=sync_flush,
        )
        self.store: MessageStore
        self.engine: Engine
        self.sent = 0
        self.start()

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.store = MessageStore(self.settings, self.disk, self.clock, self.runner, retention=self.retention)
        self.store.open()
        self.engine = Engine(
            self.store, self.offsets, self.runner, agenda=self.agenda(), flush_every=self.flush_every
        )
        self.store.cleaner.guards.append(self.engine.roller.may_go)

    def stop(self) -> None:
        self.engine.close()
        self.store.close()

    def crash(self, *, offsets_too: bool = True) -> None:
        """Nothing more is written; delayOffset.json is as old as it can be."""
        self.store._release()
        if offsets_too:
            self.offsets = DelayOffsets()

    def restart(self) -> None:
        self.crash()
        self.start()

    # --- messages ---------------------------------------------------------------------------------------------

    def draft(self, topic: str = "TopicA", body: bytes = b"", **properties: str) -> Draft:
        self.sent += 1
        named = {"UNIQ_KEY": f"ID{self.sent:08d}", **properties}
        return Draft(
            topic, 0, body or str(self.sent).encode(), named, 0, 0, self.clock(), b"\x7f\0\0\x01\0\0\x30\x39"
        )

    def put(self, draft: Draft) -> str:
        """Sends it the way the broker does; its id."""
        rules.divert(draft, self.clock(), self.settings.delay_levels_ms, MAX_DELAY_MS)
        self.store.put(draft.finish())
        return draft.properties["UNIQ_KEY"]

    def put_level(self, level: int, topic: str = "TopicA", **properties: str) -> str:
        return self.put(self.draft(topic, DELAY=str(level), **properties))

    def put_timer(self, after_ms: int, topic: str = "TopicA", **properties: str) -> str:
        return self.put(self.draft(topic, TIMER_DELIVER_MS=str(self.clock() + after_ms), **properties))

    def cancel(self, msg_id: str, topic: str = "TopicA") -> State | None:
        """What the recall request does; the state the message was in."""
        found = self.engine.lookup.by_id(topic, msg_id)
        waiting = [one for one in found if one.state is State.WAITING]
        for one in waiting:
            self.store.put(cancelling(one.waiting, one.spot.due_ms, self.clock(), bytes(8)))
            self.engine.cancelled.add(one.position, one.spot.due_ms)
        return State.WAITING if waiting else found[0].state if found else None

    def put_others(self, count: int) -> None:
        """Other traffic, so that the log goes on."""
        for _ in range(count):
            self.store.put(Draft("Other", 0, bytes(100), {}, 0, 0, self.clock(), bytes(8)).finish())

    def clean(self) -> int:
        """What the periodic cleaning and the engine do in turn; how many log files went."""
        cleaned = 0
        for _ in range(4):
            cleaned += self.store.cleaner.run(manual=True).log_files
            self.step()
        return cleaned

    # --- time -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Everything that is due now."""
        for _ in range(10_000):
            if not self.engine.step(self.clock(), lambda: False):
                self.store.tick()
                return
        raise AssertionError("the engine finds no end")

    def run_until(self, end_ms: int) -> None:
        """Lets time pass the way the event loop does: to the next moment the engine asks for."""
        self.step()
        while self.clock() < end_ms:
            self.clock.now_ms = min(end_ms, self._next_ms())
            self.step()

    def _next_ms(self) -> int:
        """As `next_ms`, but without the looks in between that find nothing."""
        if self.store.refusal:
            return self.engine.next_ms(self.clock())
        times = [t for t in [self.engine.agenda.next_ms(self.clock())] if t is not None]
        for level in self.engine.levels:
            queue = self.engine.level_queue(level)
            due = level.next_ms(queue, self.clock()) if queue is not None else None
            times += [due] if due is not None else []
        return max(self.clock() + 1, min(times, default=1 << 62))

    # --- looking ----------------------------------------------------------------------------------------------

    def messages(self, topic: str = "TopicA", queue_id: int = 0) -> list[Message]:
        queue = self.store.find_queue(topic, queue_id)
        if queue is None:
            return []
        found = []
        offset = queue.min_offset
        while offset < queue.max_offset:
            for position, size, _ in UNIT.iter_unpack(queue.read_units(offset, 500)):
                record = self.store.log.read(position, size)
                if record:  # the queue may not have followed the cleaning yet
                    found.append(decode_record(record))
                offset += 1
        return found

    def ids(self, topic: str = "TopicA") -> list[str]:
        return [message.properties["UNIQ_KEY"] for message in self.messages(topic)]

    def delivered_at(self, topic: str = "TopicA") -> dict[str, int]:
        """Id to the time after the start at which it was delivered."""
        return {m.properties["UNIQ_KEY"]: m.store_ms - START_MS for m in self.messages(topic)}

    def waiting(self) -> Iterator[str]:
        from orbitmq.broker.timing.lookup import Spot

        return (one.waiting.unique_key for one in self.engine.lookup.walk(Spot(-1, 0, -1)))
