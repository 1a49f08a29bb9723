"""A broker in virtual time: a log, the real in-sync set, and links to the others that keep order until they break."""

from __future__ import annotations

from collections.abc import Callable

from orbitmq.cluster.controller.steps import Answer, Refusal
from orbitmq.cluster.epochs import EpochHistory, common_end
from orbitmq.cluster.in_sync import InSync
from orbitmq.cluster.lease import Lease
from orbitmq.store.durability import Durable
from orbitmq.wire.controller_bodies import (
    DECLINED,
    LEAVING,
    MASTER,
    RESIGNED,
    SLAVE,
    STARTING,
    AlterInSync,
    GroupAnswer,
    ReplicaHeartbeat,
)
from tests.support.sim_world import GROUP, WALL_MS, Record, World

BEATS_PER_LEASE = 8


class SimLink:
    """A connection: in order both ways, until it breaks; then each side notices in its own time."""

    def __init__(self, world: World, slave: SimReplica, master: SimReplica, target: tuple[int, int]) -> None:
        self.world = world
        self.slave, self.master = slave, master
        self.runs = {slave.name: slave.run, master.name: master.run}
        self.target = target
        self.number = 0
        self.broken = False
        self.greeted = False
        self.stands_at = -1
        self.next = -1
        self.delay_ms = world.rng.choice([1.0, 3.0, 40.0])
        self.heard_ms = {slave.name: world.now, master.name: world.now}
        self._last = {slave.name: world.now, master.name: world.now}

    def send(self, to: SimReplica, action: Callable[[], None]) -> None:
        if self.world.are_apart(self.slave.name, self.master.name):
            return  # and everything behind it: whoever comes too late finds a gap and breaks the link
        when = max(self._last[to.name], self.world.now + self.world.rng.expovariate(1 / self.delay_ms))
        self._last[to.name] = when

        def arrive() -> None:
            if not self.broken:
                self.heard_ms[to.name] = self.world.now
                action()

        self.world.after(when - self.world.now, lambda: to.when_awake(self.runs[to.name], arrive))

    def break_(self) -> None:
        if self.broken:
            return
        self.broken = True
        for side in (self.slave, self.master):
            run = self.runs[side.name]
            self.world.after(
                self.world.rng.uniform(0, 30),
                lambda side=side, run=run: side.when_awake(run, lambda: side.link_lost(self)),  # type: ignore[misc]
            )


class SimReplica:
    def __init__(self, world: World, name: str, min_in_sync: int) -> None:
        self.world = world
        self.name = name
        self.rate = world.rng.uniform(0.97, 1.03)
        self.min_in_sync = min_in_sync
        self.log: list[Record] = []
        self.history = EpochHistory()
        self.runs = 0
        self.up = False
        self.frozen_until = 0.0
        world.replicas.append(self)
        self.start()

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.up = True
        self.runs += 1
        self.run = f"{self.name}-{self.runs}"
        self.role, self.epoch, self.number = STARTING, 0, 0
        self.known: GroupAnswer | None = None
        self.lease = Lease(lambda: self.clock_ms / 1000)
        self.in_sync: InSync | None = None
        self.accepts = False
        self.switching = False
        self.links: dict[int, SimLink] = {}
        self.link: SimLink | None = None
        self.confirm = -1
        self.opened_at = len(self.log)
        self._beat_id = self._alter_id = 0
        self._beat_sent: float | None = None
        self._alter_sent: float | None = None
        self._every(self.world.rules.lease_ms / BEATS_PER_LEASE, self.beat)
        self._every(12, self.tick)

    def crash(self, down_ms: float) -> None:
        if self.up:
            self._close()
            self.up = False
            self.lease.give_up()
            self.world.after(down_ms, self.start)

    def freeze(self, for_ms: float) -> None:
        self.frozen_until = max(self.frozen_until, self.world.now + for_ms)

    def leave(self, down_ms: float) -> None:
        """A clean stop: like the broker's, it does not wait for ever."""
        self.accepts = False
        self._when_held(lambda: self._left(down_ms))

    def _left(self, down_ms: float) -> None:
        if self.role in (MASTER, RESIGNED):
            self.lease.give_up()
        self.role = LEAVING
        self._send_beat()
        self.crash(down_ms)

    @property
    def clock_ms(self) -> int:
        return int(self.world.now * self.rate)

    @property
    def holds_lease(self) -> bool:
        return self.up and self.role == MASTER and self.lease.valid

    def when_awake(self, run: str, action: Callable[[], None]) -> None:
        """A frozen process finds everything that arrived when it wakes; a new one finds nothing."""
        if not self.up or self.run != run:
            return
        if self.world.now < self.frozen_until:
            self.world.after(self.frozen_until - self.world.now + 0.01, lambda: self.when_awake(run, action))
        else:
            action()

    def _every(self, period_ms: float, action: Callable[[], None]) -> None:
        run = self.run

        def again() -> None:
            if self.up and self.run == run:
                self.when_awake(run, action)
                self.world.after(period_ms, again)

        self.world.after(self.world.rng.uniform(0, period_ms), again)

    # --- the controller ---------------------------------------------------------------------------------------

    def beat(self) -> None:
        patience = self.world.rules.lease_ms / 3
        if self.role != LEAVING and (self._beat_sent is None or self.world.now - self._beat_sent > patience):
            self._send_beat()

    def _send_beat(self) -> None:
        if self.role in (STARTING, SLAVE):
            self.epoch = self.history.cut(len(self.log)).last_epoch
        self._beat_id += 1
        self._beat_sent = self.world.now
        number, sent_s, role, epoch, run = (
            self._beat_id,
            self.clock_ms / 1000,
            self.role,
            self.epoch,
            self.run,
        )
        message = ReplicaHeartbeat(
            cluster="C",
            broker=GROUP,
            token=self.name,
            run=run,
            role=role,
            address=f"{self.name}:1",
            ha_address=f"{self.name}:2",
            epoch=epoch,
            end=len(self.log),
            clock_ms=WALL_MS,
        )

        def answered(step: Answer | Refusal) -> None:
            body = self.world.answer_body(step)
            assert body is not None, f"{message} is refused: {step}"
            if number == self._beat_id:
                self._beat_sent = None
                self._take_answer(body, sent_s, role, epoch)

        self.world.ask_controller(
            self.name, message, lambda step: self.when_awake(run, lambda: answered(step))
        )

    def _take_answer(self, answer: GroupAnswer, sent_s: float, role: str, epoch: int) -> None:
        self.known = answer
        self.number = answer.replica
        mine = answer.master == answer.replica
        if role == MASTER == self.role and mine and answer.epoch == epoch == self.epoch:
            self.lease.renew(sent_s, answer.lease_ms / 1000)
        if self.switching or self.role == LEAVING:
            return
        if mine and self.role == MASTER and self.epoch == answer.epoch:
            if self.in_sync is not None:
                self.in_sync.granted(answer.in_sync, answer.version)
            if answer.resign and self.accepts:
                self.accepts = False
                self._when_held(self._resigned)
        elif mine and (self.role not in (RESIGNED, DECLINED) or answer.epoch > self.epoch):
            self.role, self.epoch = MASTER, answer.epoch
            self.lease.renew(sent_s, answer.lease_ms / 1000)
            self._reopen(self._lead)
        elif self.role in (MASTER, RESIGNED, DECLINED) and answer.epoch > self.epoch:
            self.role = SLAVE
            self.lease.give_up()
            self._reopen(lambda: None)
        elif self.role == STARTING:
            self.role = SLAVE

    def _resigned(self) -> None:
        if self.role == MASTER:
            self.role = RESIGNED
            self.lease.give_up()

    def _when_held(self, action: Callable[[], None]) -> None:
        run, deadline = self.run, self.world.now + 2 * self.world.rules.lease_ms

        def look() -> None:
            if not self.up or self.run != run:
                return
            held = self.in_sync is None or self.in_sync.everything_held(len(self.log))
            if held or self.world.now > deadline:
                self.when_awake(run, action)
            else:
                self.world.after(5, look)

        look()

    def _reopen(self, then: Callable[[], None]) -> None:
        self._close()
        self.switching = True
        run = self.run

        def opened() -> None:
            self.switching = False
            self.opened_at = len(self.log)
            self.confirm = -1
            then()

        delay = self.world.rng.uniform(0, self.world.rules.lease_ms / 2)
        self.world.after(delay, lambda: self.when_awake(run, opened))

    def _close(self) -> None:
        for link in [*self.links.values(), *([self.link] if self.link else [])]:
            link.break_()
        self.links, self.link = {}, None
        if self.in_sync is not None:
            self.in_sync.close()
        self.in_sync = None
        self.accepts = False

    # --- as master --------------------------------------------------------------------------------------------

    def _lead(self) -> None:
        assert self.known is not None
        if self.role != MASTER:
            return
        if self.world.rng.random() < self.world.weather.cannot_begin:
            self.role = DECLINED
            self.lease.give_up()
            return
        self.history = self.history.begin(self.epoch, len(self.log))
        self.world.ledger.take_office(self.run, self.epoch, self.log)
        lease_ms = self.world.rules.lease_ms
        self.in_sync = InSync(
            self.number,
            {self.number, *self.known.in_sync},
            self.known.version,
            len(self.log),
            lambda: self.clock_ms,
            min_in_sync=self.min_in_sync,
            timeout_ms=2 * lease_ms,
            not_caught_up_ms=lease_ms * 3 // 4,
            near_bytes=12,
        )
        self.accepts = True

    def tick(self) -> None:
        silence = self.world.rules.lease_ms / 2
        for link in [*self.links.values(), *([self.link] if self.link else [])]:
            if self.world.now - link.heard_ms[self.name] > silence:
                link.break_()
        if self.in_sync is not None:
            self.in_sync.expire()
            self._keep_set(self.in_sync)
            for link in list(self.links.values()):
                self.pump(link, always=True)
        elif self.link is not None:
            if self.link.target != self._target():
                self.link.break_()
            elif self.link.greeted:
                self._report(self.link)
        elif self.role == SLAVE and not self.switching and self._target() is not None:
            self._connect()

    def _keep_set(self, in_sync: InSync) -> None:
        patience = self.world.rules.lease_ms / 3
        if self._alter_sent is not None and self.world.now - self._alter_sent < patience:
            return
        self._alter_sent = None
        wished = in_sync.wish()
        if wished is None:
            return
        in_sync.asked(wished)
        self._alter_id += 1
        self._alter_sent = self.world.now
        number, run = self._alter_id, self.run
        message = AlterInSync(
            cluster="C",
            broker=GROUP,
            replica=self.number,
            epoch=self.epoch,
            version=in_sync.version,
            in_sync=sorted(wished),
        )

        def answered(step: Answer | Refusal) -> None:
            body = self.world.answer_body(step)
            if number != self._alter_id or self._alter_sent is None or self.in_sync is not in_sync:
                return
            self._alter_sent = None
            if body is not None and body.epoch == self.epoch:
                settle = in_sync.granted if isinstance(step, Answer) else in_sync.refused
                settle(body.in_sync, body.version)

        self.world.ask_controller(
            self.name, message, lambda step: self.when_awake(run, lambda: answered(step))
        )

    def produce(self) -> None:
        in_sync = self.in_sync
        if in_sync is None or not self.accepts or not self.holds_lease or self.world.now < self.frozen_until:
            return
        self.world.produced += 1
        record, epoch, offset = Record(self.epoch, self.world.produced), self.epoch, len(self.log)
        self.log.append(record)

        def outcome(durable: Durable) -> None:
            if durable is Durable.YES:
                self.world.promise("acknowledged", offset, record, epoch)

        on_device = in_sync.after(len(self.log), outcome)
        run = self.run
        self.world.after(
            self.world.rng.expovariate(1 / 2), lambda: self.when_awake(run, lambda: on_device(Durable.YES))
        )
        for link in self.links.values():
            self.pump(link)

    def consume(self) -> None:
        """Whatever this replica would show a consumer now."""
        if not self.up or self.switching or self.world.now < self.frozen_until:
            return
        if self.in_sync is not None:
            visible, epoch = self.in_sync.visible_offset, self.epoch
        elif self.link is not None and self.confirm >= self.opened_at:
            visible, epoch = self.confirm, self.link.target[1]
        else:
            return
        for offset in range(max(0, visible - 8), min(visible, len(self.log))):
            self.world.promise("seen", offset, self.log[offset], epoch)

    def greeted(self, link: SimLink, replica: int, epoch: int, end: int, history: EpochHistory) -> None:
        if self.in_sync is None or self.role not in (MASTER, RESIGNED, LEAVING) or epoch != self.epoch:
            link.break_()
            return
        older = self.links.get(replica)
        self.links[replica] = link
        if older is not None:
            older.break_()
        link.number = replica
        common = common_end(history, end, self.history, len(self.log))
        link.stands_at = end if common == end else -1
        mine, my_end = self.history, len(self.log)
        link.send(link.slave, lambda: link.slave.welcomed(link, end, history, mine, my_end))

    def stands(self, link: SimLink, position: int) -> None:
        if position != link.stands_at:
            link.break_()
            return
        link.next = position
        self.pump(link)

    def reported(self, link: SimLink, offset: int) -> None:
        counts = link.next >= 0 and self.links.get(link.number) is link
        if counts and self.in_sync is not None and offset <= len(self.log):
            self.in_sync.confirmed(link.number, offset)
            self.pump(link)

    def pump(self, link: SimLink, *, always: bool = False) -> None:
        if link.next < 0 or self.in_sync is None or (link.next == len(self.log) and not always):
            return
        start, block, told = link.next, self.log[link.next :], self.in_sync.visible_offset
        link.next = len(self.log)
        link.send(link.slave, lambda: link.slave.take_block(link, start, block, told))

    # --- as slave ---------------------------------------------------------------------------------------------

    def _target(self) -> tuple[int, int] | None:
        known = self.known
        if known is None or known.master in (None, self.number) or self.role != SLAVE:
            return None
        return known.master, known.epoch

    def _connect(self) -> None:
        target = self._target()
        assert target is not None and self.known is not None
        host = str(self.known.master_ha_address).partition(":")[0]
        master = next(each for each in self.world.replicas if each.name == host)
        if not master.up or self.world.are_apart(self.name, master.name):
            return
        link = self.link = SimLink(self.world, self, master, target)
        end, history, number = len(self.log), self.history, self.number
        link.send(master, lambda: master.greeted(link, number, target[1], end, history))

    def welcomed(
        self, link: SimLink, end: int, mine: EpochHistory, theirs: EpochHistory, their_end: int
    ) -> None:
        if link is not self.link:
            return
        point = common_end(mine, end, theirs, their_end)
        if point < end:
            self.world.ledger.cut(self.name, self.log, point)
            self.log = self.log[:point]
            self.history = self.history.cut(point)
            self._reopen(lambda: None)
            return
        self.history = theirs
        link.greeted = True
        link.send(link.master, lambda: link.master.stands(link, end))
        self._report(link)

    def _report(self, link: SimLink) -> None:
        offset = len(self.log)
        link.send(link.master, lambda: link.master.reported(link, offset))

    def take_block(self, link: SimLink, start: int, block: list[Record], told: int) -> None:
        if link is not self.link:
            return
        if start != len(self.log):
            link.break_()
            return
        self.log += block
        self.confirm = told
        self._report(link)

    def link_lost(self, link: SimLink) -> None:
        if self.link is link:
            self.link = None
        if self.links.get(link.number) is link:
            del self.links[link.number]
            if self.in_sync is not None:
                self.in_sync.lost(link.number)
