"""Which replicas may become master, as the master sees it: who has how much, who joins, who has to go, who waits.

The controller elects only from the in-sync set, so an acknowledged message must be with all of it; and with all of
any set that the controller may have granted without our knowing. That union is the ack set. A request is settled only
by a greater version: as long as the version is the old one, a copy of the request may still be on its way.
No input or output: offsets and answers come in, the clock is a parameter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from orbitmq.store.durability import Durable, Waiter

EVERYTHING: Final = (1 << 63) - 1
NEAR_BYTES: Final = 1 << 20


class _Copy:
    """What another replica is known to have. `since_ms`: when it last had everything, or more than before."""

    __slots__ = ("connected", "offset", "since_ms")

    def __init__(self, now_ms: int) -> None:
        self.offset = 0
        self.connected = False
        self.since_ms = now_ms


class InSync:
    """Of one mastership. `me` is this replica, `own` what its log has: on the device where acks mean that.

    A replica within `near_bytes` of the end joins: it counts for acks from then on, and the controller is asked as soon
    as it has all that was confirmed. One that is away, or behind without coming on, for `not_caught_up_ms` has to go.
    Fewer than `min_in_sync` members make an answer that says so, without waiting.
    """

    def __init__(
        self,
        me: int,
        members: Iterable[int],
        version: int,
        own: int,
        clock_ms: Callable[[], int],
        *,
        min_in_sync: int,
        timeout_ms: int,
        not_caught_up_ms: int,
        near_bytes: int = NEAR_BYTES,
        wait_for_copies: bool = True,
    ) -> None:
        self.me = me
        self.members = frozenset(members)
        self.version = version
        self.wait_for_copies = wait_for_copies
        self.on_wish: Callable[[], None] | None = None
        self.may_join: Callable[[int], bool] = lambda replica: True
        self._clock_ms = clock_ms
        self._min_in_sync = min_in_sync
        self._timeout_ms = timeout_ms
        self._not_caught_up_ms = not_caught_up_ms
        self._near_bytes = near_bytes
        self._own = own
        self._looked_ms = clock_ms()
        self._copies = {replica: _Copy(self._looked_ms) for replica in self.members - {me}}
        self._joining: set[int] = set()
        self._asked: frozenset[int] = frozenset()
        self._listeners: list[Callable[[int], None]] = []
        self._waiters: deque[tuple[int, int, Waiter]] = deque()
        self._closed = False
        self.ack_set: frozenset[int] = self.members
        self._counted: tuple[_Copy, ...] = ()
        self.held = 0
        """What the whole ack set has at this moment; less than before when somebody joins."""
        self.confirm_offset = 0
        """The most that the whole ack set ever had: no election takes it away."""
        self._count_anew()
        self._moved()

    @property
    def visible_offset(self) -> int:
        """Up to where consumers may see the log. Who does not wait for copies accepts that what it saw is replaced."""
        return self.confirm_offset if self.wait_for_copies else EVERYTHING

    def listen(self, listener: Callable[[int], None]) -> None:
        """Is told the confirm offset whenever it moves, before those who wait for it."""
        self._listeners.append(listener)

    # --- who has how much -------------------------------------------------------------------------------------

    def own(self, offset: int) -> None:
        before = self._own
        if offset <= before:
            return
        self._own = offset
        for copy in self._copies.values():
            if before <= copy.offset < offset:  # it had everything until now
                copy.since_ms = self._clock_ms()
        self._moved()

    def confirmed(self, replica: int, offset: int) -> None:
        """A slave that greeted says what it has; what it says now counts, also when it is less than before."""
        copy = self._copies.get(replica)
        if copy is None:
            copy = self._copies[replica] = _Copy(self._clock_ms())
        # A new connection alone is no progress: one that cannot write would come back for ever and hold up everybody.
        if offset > copy.offset or offset >= self._own:
            copy.since_ms = self._clock_ms()
        copy.offset = offset
        copy.connected = True
        if replica not in self.ack_set and self._own - offset <= self._near_bytes and not self._late(copy):
            self._joining.add(replica)
            self._count_anew()
        self._moved()
        self.look_again(replica)

    def look_again(self, replica: int) -> None:
        """Something about this replica changed: perhaps it can be asked for now."""
        waits = replica in self._joining and replica not in self._asked
        if waits and self.on_wish is not None and self._is_ready(replica):
            self.on_wish()

    def lost(self, replica: int) -> None:
        """Its connection is gone; a member counts on, with what it had, until the controller let it go."""
        copy = self._copies.get(replica)
        if copy is None:
            return
        if copy.connected and copy.offset >= self._own:
            copy.since_ms = self._clock_ms()
        copy.connected = False
        self._joining.discard(replica)
        self._count_anew()
        self._moved()

    def everything_held(self, log_end: int) -> bool:
        """Whether a master that takes no more messages can go without taking any along."""
        return self.held >= log_end

    # --- what to ask the controller for -----------------------------------------------------------------------

    def wish(self) -> frozenset[int] | None:
        """The set to ask for now, at `version`; None when there is nothing to ask.

        While the outcome of a request is unknown and nothing else is wished, the set in force is: its new version
        proves that the request will not be granted any more.
        """
        if self._closed:
            return None
        self._forgive_a_pause()
        stay = {each for each in self.members if each == self.me or not self._late(self._copies[each])}
        target = stay | {each for each in self._joining if self._is_ready(each)} | {self.me}
        if target != self.members:
            return frozenset(target)
        return self.members if self._asked else None

    def asked(self, wished: Iterable[int]) -> None:
        """Before the request is sent. It counts until a greater version is known, whatever is heard of it."""
        self._asked |= frozenset(wished)
        self._count_anew()
        self._moved()

    def granted(self, members: Iterable[int], version: int) -> None:
        """The controller's answer, or a heartbeat's: the set in force. An old answer changes nothing."""
        if version <= self.version:
            return
        self.members = frozenset(members)
        self.version = version
        self._asked = frozenset()
        self._joining -= self.members
        now_ms = self._clock_ms()
        for replica in self.members - {self.me}:
            self._copies.setdefault(replica, _Copy(now_ms))
        self._count_anew()
        if len(self.members) < self._min_in_sync:
            self._answer_all(Durable.NO_COPY)
        self._moved()

    def refused(self, members: Iterable[int], version: int) -> None:
        """Refused for its version: that of another request is in force. For anything else: the outcome stays open."""
        self.granted(members, version)

    def _is_ready(self, replica: int) -> bool:
        copy = self._copies[replica]
        return copy.connected and copy.offset >= self.confirm_offset and self.may_join(replica)

    def _late(self, copy: _Copy) -> bool:
        if copy.connected and copy.offset >= self._own:
            return False
        return self._clock_ms() - copy.since_ms >= self._not_caught_up_ms

    def _forgive_a_pause(self) -> None:
        """When this process was not running, what slaves said meanwhile is not read yet: they are not late."""
        now_ms = self._clock_ms()
        if now_ms - self._looked_ms > self._not_caught_up_ms // 2:
            for copy in self._copies.values():
                copy.since_ms = now_ms
        self._looked_ms = now_ms

    # --- who waits --------------------------------------------------------------------------------------------

    def after(self, end: int, waiter: Waiter) -> Waiter:
        def on_device(outcome: Durable) -> None:
            if outcome is Durable.YES:
                self.own(end)
                self.when(end, waiter)
            else:
                waiter(outcome)

        return on_device

    def when(self, end: int, waiter: Waiter) -> None:
        """Calls the waiter when the ack set has everything up to `end`, is too small, or takes too long."""
        if self._closed:
            waiter(Durable.COPY_TIMEOUT)
        elif len(self.members) < self._min_in_sync:
            waiter(Durable.NO_COPY)
        elif self.held >= end:
            waiter(Durable.YES)
        else:
            self._waiters.append((end, self._clock_ms() + self._timeout_ms, waiter))

    def expire(self) -> None:
        """Every now and then: who waited too long hears so, and who came near but not on does not join."""
        self._forgive_a_pause()
        now_ms = self._clock_ms()
        while self._waiters and self._waiters[0][1] <= now_ms:
            self._waiters.popleft()[2](Durable.COPY_TIMEOUT)
        stuck = {replica for replica in self._joining if self._late(self._copies[replica])}
        if stuck:
            self._joining -= stuck
            self._count_anew()
            self._moved()

    def close(self) -> None:
        """The mastership is over: nobody hears yes any more, and nothing more is confirmed."""
        self._closed = True
        self._answer_all(Durable.COPY_TIMEOUT)

    def _answer_all(self, outcome: Durable) -> None:
        waiters, self._waiters = self._waiters, deque()
        for _, _, waiter in waiters:
            waiter(outcome)

    # --- counting ---------------------------------------------------------------------------------------------

    def _count_anew(self) -> None:
        self.ack_set = self.members | self._asked | self._joining | {self.me}
        now_ms = self._clock_ms()
        for replica in list(self._copies):
            if not self._copies[replica].connected and replica not in self.ack_set:
                del self._copies[replica]
        others = self.ack_set - {self.me}
        self._counted = tuple(self._copies.setdefault(replica, _Copy(now_ms)) for replica in others)

    def _moved(self) -> None:
        held = self._own
        for copy in self._counted:
            if copy.offset < held:
                held = copy.offset
        self.held = held
        if held > self.confirm_offset and not self._closed:
            self.confirm_offset = held
            for listener in self._listeners:
                listener(held)
        waiters = self._waiters
        while waiters and waiters[0][0] <= self.held:
            waiters.popleft()[2](Durable.YES)
