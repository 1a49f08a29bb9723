"""The controller's decisions, without any I/O: events and times come in, steps go out.

A step that changes what must outlive the process is a `Store`; nothing that depends on it is said before it is stored.
Whoever drives the machine asks the same question again after `stored`, so a decision is always made on what is stored.

* A master's lease lasts here a tenth longer than the master itself counts, and from the receipt of its heartbeat,
  not from its sending: while the master may think it is one, nobody else is chosen.
* Somebody is chosen only while he is speaking, so an elected master always learns of it at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from orbitmq.cluster.controller.election import Choice, Vacancy, choose, resigned
from orbitmq.cluster.controller.newcomers import Newcomers
from orbitmq.cluster.controller.presence import Admission, Live, Presence
from orbitmq.cluster.controller.state import GroupState, Replica, Stored
from orbitmq.cluster.controller.steps import (
    Answer,
    Refusal,
    Step,
    Store,
    check_beat,
    check_wish,
    misconfigured,
    unknown_group,
)
from orbitmq.cluster.controller.views import view_of
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.controller_bodies import (
    DECLINED,
    AlterInSync,
    GroupAnswer,
    GroupView,
    HandOver,
    ReplicaHeartbeat,
)

WISH_LEASES: Final = 10


@dataclass(frozen=True, slots=True)
class Rules:
    """How strict and how patient a controller is."""

    lease_ms: int = 2000
    unclean: bool = False
    """Without anybody of the in-sync set alive, take anyone: messages that were acknowledged may be lost."""
    max_clock_gap_ms: int = 10_000

    @property
    def patience_ms(self) -> int:
        """The lease as counted here: clocks may differ in speed, and none by a tenth."""
        return self.lease_ms + self.lease_ms // 10 + 1


@dataclass(slots=True)
class Wish:
    to: int | None
    unclean: bool
    until_ms: int


class Group:
    """A stored state, and what was heard since."""

    def __init__(self, stored: Stored, presence: Presence) -> None:
        self.presence = presence
        self.lease_end_ms = 0
        self.silent_until_ms = 0
        """Nobody is told of the master before: another one, chosen elsewhere, may still hold a lease."""
        self.wish: Wish | None = None
        self.lost_noted = False
        self.due_ms: int | None = None
        self.put(stored)

    def put(self, stored: Stored) -> None:
        self.state, self.revision = stored
        self.numbers = {replica.token: number for number, replica in self.state.replicas.items()}

    def has_master(self, now_ms: int) -> bool:
        return self.silent_until_ms <= now_ms < self.lease_end_ms

    def choice(self, rules: Rules, now_ms: int) -> Choice:
        wish = self.wish
        vacancy = Vacancy(
            max(self.lease_end_ms, self.silent_until_ms),
            wished=wish.to if wish else None,
            unclean=rules.unclean or (wish is not None and wish.unclean),
        )
        return choose(self.state, self.presence, vacancy, now_ms, rules.lease_ms)


class Machine:
    def __init__(self, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.groups: dict[str, Group] = {}
        self._started_ms = 0
        self._tokens: dict[str, str] = {}
        self._newcomers = Newcomers(self.rules.unclean, self.rules.max_clock_gap_ms, self.rules.lease_ms)
        # Moved on only when it comes up, so that a heartbeat costs nothing here; what is not a group's due time is old.
        self._deadlines: list[tuple[int, str]] = []

    def take_over(self, known: Mapping[str, Stored], now_ms: int) -> None:
        """Begins anew with what is stored: what the one before granted is not known, so all leases start now."""
        self.groups.clear()
        self._tokens.clear()
        self._deadlines.clear()
        self._started_ms = now_ms
        for key, stored in known.items():
            self._settle(key, stored, now_ms)

    def stored(self, key: str, state: GroupState, revision: int, now_ms: int) -> None:
        """The engine keeps this state now."""
        self._settle(key, Stored(state, revision), now_ms)

    def reloaded(self, key: str, stored: Stored | None, now_ms: int) -> None:
        """The engine was asked what it has, because a swap failed or nobody knows how it ended."""
        group = self.groups.get(key)
        if stored is None:
            self._forget(key)
        elif group is None or stored.state != group.state:
            self._settle(key, stored, now_ms)
        else:
            group.put(stored)

    def heartbeat(self, beat: ReplicaHeartbeat, now_ms: int, wall_ms: int) -> Step:
        refusal = check_beat(beat)
        if refusal is not None:
            return refusal
        group = self.groups.get(beat.broker)
        if group is None:
            return self._newcomers.first_of_group(
                beat, wall_ms, len(self.groups), self._tokens.get(beat.token)
            )
        state = group.state
        if state.cluster != beat.cluster:
            return misconfigured(
                f"broker name {beat.broker!r} belongs to cluster {state.cluster!r} and this broker says "
                f"{beat.cluster!r}: correct its brokerClusterName, or give it another brokerName"
            )
        number = group.numbers.get(beat.token)
        if number is None:
            home = self._tokens.get(beat.token)
            return self._newcomers.join(
                beat, wall_ms, now_ms, group.state, group.revision, group.presence, home
            )
        refusal = self._newcomers.check_known(beat, wall_ms, state, group.presence.is_new(number, beat.run))
        if refusal is not None:
            return refusal
        admission = group.presence.admit(number, beat.run, now_ms)
        if admission is Admission.COPY:
            return misconfigured(
                f"this store directory is a copy: replica {number} of {beat.broker}, with the same token, is alive "
                f"at {state.replicas[number].address}. Stop one of the two; a copy becomes a replica of its own "
                "when it starts with an empty directory"
            )
        if admission is Admission.WAIT:
            return Answer(self._answer(group, number, None))
        return self._from_replica(group, number, group.presence.note(number, beat, now_ms), beat, now_ms)

    def alter(self, wish: AlterInSync, now_ms: int) -> Step:
        """A master's wish for another in-sync set, on top of the version it knows."""
        group = self.groups.get(wish.broker)
        if group is None:
            return unknown_group(wish.broker)
        state = group.state
        wanted = tuple(sorted(set(wish.in_sync)))
        known = (state.cluster, state.master, state.epoch, state.version)
        if (wish.cluster, wish.replica, wish.epoch, wish.version) != known:
            why = (
                f"replica {wish.replica} asks as master of epoch {wish.epoch} with version {wish.version}, known are "
                f"replica {state.master}, epoch {state.epoch}, version {state.version}"
            )
        elif state.master not in wanted:
            why = f"an in-sync set has its master in it, and {list(wanted)} lacks {state.master}"
        elif not group.has_master(now_ms):
            why = f"replica {state.master} has no lease any more: somebody else may be chosen from the in-sync set"
        elif strange := set(wanted) - state.replicas.keys():
            why = f"replica {', '.join(map(str, sorted(strange)))} is not known in {wish.broker}"
        else:
            # Also for the set that is in force: its new version proves to the master that an earlier wish, whose
            # outcome it does not know, will not be granted any more.
            changed = msgspec.structs.replace(state, in_sync=wanted, former=(), version=state.version + 1)
            why = f"in-sync set {list(state.in_sync)} becomes {list(wanted)}"
            return Store(wish.broker, changed, group.revision, why, answer_to=wish.replica)
        body = self._answer(group, wish.replica, self._named(group, now_ms))
        return Refusal(ResponseCode.IN_SYNC_REFUSED, why, body)

    def hand_over(self, wish: HandOver, now_ms: int) -> Step:
        """A tool's wish for another master: the present one is asked to resign."""
        group = self.groups.get(wish.broker)
        if group is None:
            return unknown_group(wish.broker)
        state = group.state
        refusal = check_wish(wish, state)
        if refusal is not None:
            return refusal
        if group.has_master(now_ms):
            if wish.to == state.master:
                return Answer(self._view(group, now_ms))
            others = [n for n in state.in_sync if n != state.master and group.presence.alive(n, now_ms)]
            if not others or (wish.to is not None and wish.to not in others):
                who = "nobody else is" if wish.to is None else f"replica {wish.to} is not"
                return Refusal(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"{who} alive and in sync with the master of {wish.broker} (in sync: "
                    f"{', '.join(map(str, state.in_sync))}): start it, or wait until it has caught up",
                )
        group.wish = Wish(wish.to, wish.unclean, now_ms + WISH_LEASES * self.rules.lease_ms)
        self._watch(group)
        return Answer(self._view(group, now_ms))

    def answer_to(self, key: str, number: int, now_ms: int) -> GroupAnswer:
        group = self.groups[key]
        return self._answer(group, number, self._named(group, now_ms))

    def views(self, now_ms: int) -> list[GroupView]:
        return [self._view(group, now_ms) for _, group in sorted(self.groups.items())]

    def tick(self, now_ms: int) -> list[str]:
        """What a person should be told. Looks only at groups whose time has come."""
        notices: list[str] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            at_ms, key = heapq.heappop(self._deadlines)
            group = self.groups.get(key)
            if group is None or group.due_ms != at_ms:
                continue
            group.due_ms = None
            if group.wish is not None and group.wish.until_ms <= now_ms:
                group.wish = None
                notices.append(f"{key}: the wish for another master is given up, nothing came of it in time")
            if not group.lost_noted and group.lease_end_ms <= now_ms:
                group.lost_noted = True
                nobody = group.choice(self.rules, now_ms).why_nobody
                notices.append(
                    f"{key}: replica {group.state.master} is not master any more: it left, or was silent for longer "
                    f"than its lease{'; ' + nobody if nobody else ''}"
                )
            self._watch(group)
        return notices

    def _from_replica(
        self, group: Group, number: int, live: Live, beat: ReplicaHeartbeat, now_ms: int
    ) -> Step:
        state = group.state
        replica = Replica(beat.token, beat.address, beat.ha_address)
        if state.replicas[number] != replica:
            replicas = {**state.replicas, number: replica}
            changed = msgspec.structs.replace(state, replicas=replicas)
            return Store(beat.broker, changed, group.revision, f"replica {number} is at {beat.address} now")
        if number == state.master and live.run == state.master_run:
            if beat.role == DECLINED and beat.epoch == state.epoch and state.former:
                return self._undo(group)
            if live.left or resigned(state, group.presence, number):
                group.lease_end_ms = min(group.lease_end_ms, now_ms)
                self._watch(group)
            elif now_ms >= group.silent_until_ms:
                group.lease_end_ms = max(group.lease_end_ms, now_ms + self.rules.patience_ms)
                if group.lost_noted:
                    group.lost_noted = False
                    self._watch(group)
        vacant = now_ms >= max(group.lease_end_ms, group.silent_until_ms)
        if vacant and group.choice(self.rules, now_ms).number == number:
            return self._elect(group, number, live)
        named = self._named(group, now_ms)
        if number == state.master and live.run != state.master_run:
            # An earlier run of it was elected, and this one would take that for its own: a lease that nobody renews.
            named = None
        return Answer(self._answer(group, number, named))

    def _elect(self, group: Group, number: int, live: Live) -> Store:
        state = group.state
        # Only an unclean election can meet a replica that has seen a later epoch than the one that is stored.
        epoch = max(state.epoch, *(each.epoch for each in group.presence.live.values())) + 1
        clean = number in state.in_sync
        elected = msgspec.structs.replace(
            state,
            master=number,
            master_run=live.run,
            epoch=epoch,
            in_sync=(number,),
            former=state.in_sync if clean else (),
            version=state.version + 1,
        )
        unclean = "" if clean else ", UNCLEAN: it was not in the in-sync set"
        why = f"replica {number} becomes master of epoch {epoch}, its log ends at {live.end}{unclean}"
        return Store(state.broker, elected, group.revision, why)

    def _undo(self, group: Group) -> Store:
        """No message of this epoch exists, so whoever could be elected before can be elected now."""
        state = group.state
        before = msgspec.structs.replace(state, in_sync=state.former, former=(), version=state.version + 1)
        why = f"replica {state.master} cannot begin epoch {state.epoch}: {list(state.former)} are in sync as before"
        return Store(state.broker, before, group.revision, why)

    def _settle(self, key: str, stored: Stored, now_ms: int) -> None:
        group = self.groups.get(key)
        if group is None:
            presence = Presence(self.rules.lease_ms, self.rules.patience_ms, self._started_ms)
            group = self.groups[key] = Group(stored, presence)
            before = 0
        else:
            before = group.state.epoch
            for token in group.numbers:
                self._tokens.pop(token, None)
            group.put(stored)
        self._tokens.update(dict.fromkeys(group.numbers, key))
        state = stored.state
        if state.epoch == before:
            return
        # After an election of ours this is over; one that was made elsewhere must not be heard of before.
        group.silent_until_ms = group.lease_end_ms
        group.lease_end_ms = max(now_ms, group.silent_until_ms) + self.rules.patience_ms
        group.wish = None
        group.lost_noted = False
        if group.presence.is_new(state.master, state.master_run):
            group.presence.assume(state.master, state.master_run, state.epoch, now_ms)
        self._watch(group)

    def _forget(self, key: str) -> None:
        group = self.groups.pop(key, None)
        if group is not None:
            for token in group.numbers:
                self._tokens.pop(token, None)

    def _watch(self, group: Group) -> None:
        """Has `tick` look at the group when its lease or its wish ends, whichever is first."""
        ends = [] if group.lost_noted else [group.lease_end_ms]
        if group.wish is not None:
            ends.append(group.wish.until_ms)
        if ends and (group.due_ms is None or min(ends) < group.due_ms):
            group.due_ms = min(ends)
            heapq.heappush(self._deadlines, (group.due_ms, group.state.broker))

    def _named(self, group: Group, now_ms: int) -> int | None:
        return group.state.master if group.has_master(now_ms) else None

    def _answer(self, group: Group, number: int, master: int | None) -> GroupAnswer:
        state = group.state
        there = state.replicas[master] if master is not None else None
        return GroupAnswer(
            epoch=state.epoch,
            in_sync=list(state.in_sync),
            lease_ms=self.rules.lease_ms,
            master=master,
            master_address=there.address if there else None,
            master_ha_address=there.ha_address if there else None,
            replica=number,
            resign=group.wish is not None and number == master,
            version=state.version,
        )

    def _view(self, group: Group, now_ms: int) -> GroupView:
        master = self._named(group, now_ms)
        problem = None if master is not None else group.choice(self.rules, now_ms).why_nobody
        return view_of(group.state, group.presence, master, group.lease_end_ms, problem, now_ms)
