"""The master's side in a group with a controller: a slave greets first, then gets the tables, then the log.

Only what a greeted slave says counts. With the log it hears up to where it may be shown to consumers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from orbitmq.cluster.epochs import common_end
from orbitmq.cluster.frames import GROUP_HEAD, REPORT, TABLE
from orbitmq.cluster.greeting import Greeting, GreetingReader, Hello, NotGreeted, Refusal, Welcome, encode
from orbitmq.cluster.in_sync import InSync
from orbitmq.cluster.mastership import Mastership
from orbitmq.cluster.ship import TICK_S, LogShipper
from orbitmq.cluster.slave_link import SlaveLink, log
from orbitmq.cluster.tables import TableFeed
from orbitmq.store.follower import answers_for

if TYPE_CHECKING:
    from orbitmq.store.message_store import MessageStore


class GroupShipper(LogShipper):
    """Of one mastership; the next one makes a new one. `table_timeout_ms` bounds the wait for saved tables."""

    def __init__(
        self,
        store: MessageStore,
        mastership: Mastership,
        in_sync: InSync,
        now_s: Callable[[], float],
        *,
        block_bytes: int,
        heartbeat_ms: int,
        silence_ms: int,
        table_timeout_ms: int,
    ) -> None:
        super().__init__(
            store,
            now_s,
            block_bytes=block_bytes,
            heartbeat_ms=heartbeat_ms,
            silence_ms=silence_ms,
            tick_s=min(TICK_S, heartbeat_ms / 4000),
        )
        self.mastership = mastership
        self.in_sync = in_sync
        self.tables = TableFeed(lambda: int(now_s() * 1000), table_timeout_ms)
        self.links: dict[int, GroupLink] = {}
        in_sync.may_join = self.tables.has_all
        in_sync.listen(lambda offset: self._wake())

    def send_table(self, name: str, data: bytes | Mapping[str, Any]) -> int:
        """A table as it is now, whole: to every slave that is here, and to each that comes. Its number, to wait for."""
        seq = self.tables.put(name, data)
        self._wake()
        return seq

    def table_saved(self, name: str, seq: int) -> asyncio.Future[bool]:
        """True when every replica that may become master has saved it, False when that took too long."""
        saved: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def answer(outcome: bool) -> None:
            if not saved.done():
                saved.set_result(outcome)

        self.tables.when_saved(name, seq, self._others(), answer)
        return saved

    async def tables_saved(self) -> bool:
        """The same for all tables as they are now, whoever sent them."""
        newest = self.tables.since(0)
        return all(await asyncio.gather(*(self.table_saved(frame.name, frame.seq) for frame in newest)))

    async def stop(self) -> None:
        self.tables.close()
        await super().stop()

    def look_at_tables(self) -> None:
        self.tables.look(self._others())

    def _others(self) -> frozenset[int]:
        return self.in_sync.ack_set - {self.in_sync.me}

    def _new_link(self) -> SlaveLink:
        return GroupLink(self)

    def _grown(self) -> None:
        self.in_sync.own(answers_for(self.store))
        self._wake()

    def _expire(self) -> None:
        self.in_sync.expire()
        self.look_at_tables()

    def admit(self, link: GroupLink, hello: Hello) -> str:
        """Why this slave may not follow; empty: it takes the place of an older connection of its own."""
        reason = self.mastership.refusal(hello)
        older = self.links.get(hello.replica)
        if not reason and older is not None and older.token != hello.token:
            reason = (
                f"replica {hello.replica} follows already, with another store; "
                "one of the two copied its number: empty its store"
            )
        if reason:
            return reason
        self.tables.begins(hello.replica)
        self.links[hello.replica] = link
        if older is not None:
            older.close("it connected anew")
        return ""


class GroupLink(SlaveLink):
    def __init__(self, shipper: GroupShipper) -> None:
        super().__init__(shipper)
        self._group = shipper
        self._greeting: GreetingReader | None = GreetingReader()
        self._stands_at = -1
        self._fed = 0
        self._flying: deque[tuple[int, str]] = deque()
        self._told = -1
        self.replica = 0
        self.token = ""

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self._group.links.get(self.replica) is self:
            del self._group.links[self.replica]
            self._group.in_sync.lost(self.replica)

    def data_received(self, data: bytes) -> None:
        if self._greeting is not None:
            try:
                whole = self._greeting.feed(data)
            except NotGreeted as error:
                self.close(str(error))
                return
            if whole is None:
                return
            greeting, data = whole
            self._greeting = None
            self._answer(greeting)
        if self.replica and self._transport is not None:
            self._last_report = self._shipper.now_s()
            self._take_reports(data)

    def _answer(self, greeting: Greeting) -> None:
        if not isinstance(greeting, Hello):
            self.close("it greets as a master does")
            return
        reason = self._group.admit(self, greeting)
        if reason:
            self._refuse(reason)
            return
        self.replica, self.token = greeting.replica, greeting.token
        self.peer = f"{self.peer} (replica {self.replica})"
        commit_log, history = self._shipper.store.log, self._group.mastership.history
        common = common_end(greeting.history, greeting.end, history, commit_log.position)
        self._stands_at = greeting.end if common == greeting.end else -1
        if self._transport is not None:
            welcome = Welcome(self._group.mastership.epoch, history, commit_log.start, commit_log.position)
            self._transport.write(encode(welcome))

    def _refuse(self, reason: str) -> None:
        """The slave gets to know why; what it sends from now on is not read."""
        if self._transport is not None:
            log.warning("slave %s is refused: %s", self.peer, reason)
            self._transport.write(encode(Refusal(reason)))
            self._transport.close()

    def _take_reports(self, data: bytes) -> None:
        data = self._partial + data
        whole = len(data) - len(data) % REPORT.size
        self._partial = data[whole:]
        newest = -1
        for (value,) in REPORT.iter_unpack(memoryview(data)[:whole]):
            if self._next < 0:
                # Where it stands, which need not be on its device: it is no confirmation.
                if not self._begin(value):
                    return
                self.pump()
            elif value < 0:
                self._table_saved(-value)
            else:
                newest = value
        if newest >= 0 and self._can_have(newest):
            self.reported = newest
            self._group.in_sync.confirmed(self.replica, newest)
            self.pump()

    def _begin(self, offset: int) -> bool:
        if offset != self._stands_at:
            self.close(
                f"it wants the log from {offset} on, which does not fit what it greeted with: its log has to be cut"
            )
            return False
        return super()._begin(offset)

    def _table_saved(self, seq: int) -> None:
        while self._flying and self._flying[0][0] <= seq:
            number, name = self._flying.popleft()
            self._group.tables.saved(self.replica, name, number)
        self._group.look_at_tables()
        self._group.in_sync.look_again(self.replica)

    def _before_log(self) -> None:
        if self._fed == self._group.tables.seq:
            return
        for frame in self._group.tables.since(self._fed):
            if self._paused or self._transport is None:
                return
            self._transport.write(self._head(TABLE, len(frame.body)) + frame.body)
            self._flying.append((frame.seq, frame.name))
            self._fed = frame.seq

    def _after_log(self) -> None:
        if self._told != self._group.in_sync.visible_offset:
            self._beat()

    def _head(self, offset: int, size: int) -> bytes:
        self._told = self._group.in_sync.visible_offset
        return GROUP_HEAD.pack(offset, size, self._told)
