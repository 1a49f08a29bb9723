"""The pure machine of transactions: no store, no clock but the one given."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from orbitmq.broker.transaction.ledger import (
    CARRY_DISTANCE,
    Half,
    Ledger,
    Outcome,
    Recent,
    Round,
    Rules,
    Step,
    decide,
)
from orbitmq.broker.transaction.loading import Replay

RULES = Rules(timeout_ms=6_000, max_checks=15, keep_ms=72 * 3_600_000)
MINUTE = 60_000


def always(group: str) -> bool:
    return True


def never(group: str) -> bool:
    return False


def half(offset: int, *, since: int = 0, checks: int = 0, immunity: int | None = None) -> Half:
    return Half(offset, offset * 100, "g", since, immunity, checks, None, offset)


def test_a_young_transaction_is_left_alone_and_then_asked_for() -> None:
    assert decide(half(0), 5_999, RULES, 1, always) is Step.WAIT
    assert decide(half(0), 6_000, RULES, 1, always) is Step.CHECK


def test_its_producer_may_want_more_time_or_less() -> None:
    patient = half(0, immunity=30_000)
    assert decide(patient, 29_999, RULES, 1, always) is Step.WAIT
    assert decide(patient, 30_000, RULES, 1, always) is Step.CHECK
    assert decide(half(0, immunity=0), 0, RULES, 1, always) is Step.CHECK


def test_nobody_is_asked_when_no_producer_is_there_and_nothing_is_counted() -> None:
    assert decide(half(0), MINUTE, RULES, 1, never) is Step.WAIT
    assert decide(half(0), 71 * 3_600_000, RULES, 1, never) is Step.WAIT


def test_one_that_waits_is_taken_along_so_that_progress_goes_on() -> None:
    assert decide(half(0), MINUTE, RULES, CARRY_DISTANCE + 1, never) is Step.CARRY
    assert decide(half(0, immunity=10 * MINUTE), MINUTE, RULES, CARRY_DISTANCE + 1, always) is Step.CARRY
    assert decide(half(0), 1, RULES, CARRY_DISTANCE + 1, always) is Step.WAIT


def test_they_are_not_written_again_and_again_when_most_of_them_are_open() -> None:
    """A start has to read them wherever they are; what it is spared is what ended between them."""
    ledger = Ledger()
    for offset in range(4 * CARRY_DISTANCE):
        ledger.stored(half(offset))

    def steps() -> list[tuple[Step, Half]]:
        return Round(ledger).steps(MINUTE, RULES, never, 10_000)

    assert steps() == []
    for offset in range(1, 3 * CARRY_DISTANCE):
        ledger.ended(offset, Outcome.COMMITTED)
    assert [(step, found.queue_offset) for step, found in steps()] == [(Step.CARRY, 0)]


def test_a_slice_ends_when_it_holds_enough_bytes() -> None:
    ledger = Ledger()
    for offset in range(10):
        ledger.stored(replace(half(offset), body_bytes=100))
    current = Round(ledger)
    sizes = []
    while not current.done:
        sizes.append(len(current.steps(MINUTE, RULES, always, 64, 250)))
    assert sizes == [3, 3, 3, 1]


def test_given_up_after_the_last_question_or_when_the_log_would_drop_it() -> None:
    assert decide(half(0, checks=14), MINUTE, RULES, 1, always) is Step.CHECK
    assert decide(half(0, checks=15), MINUTE, RULES, 1, always) is Step.GIVE_UP
    assert decide(half(0), RULES.keep_ms + 1, RULES, 1, never) is Step.GIVE_UP


def test_fifteen_questions_a_minute_apart_and_then_no_more() -> None:
    ledger = Ledger()
    ledger.stored(half(0))
    asked_at = []
    for minute in range(1, 40):
        for step, open_half in Round(ledger).steps(minute * MINUTE, RULES, always, 100):
            if step is Step.GIVE_UP:
                ledger.gave_up(open_half.queue_offset)
                assert minute == 16
            else:
                asked_at.append(minute)
                offset = ledger.next_half
                ledger.moved(
                    open_half.queue_offset,
                    replace(open_half, queue_offset=offset, checks=open_half.checks + 1),
                )
    assert asked_at == list(range(1, 16))
    assert not ledger.open
    assert ledger.progress() == (16, 0)
    # Its producer wakes up at last: what it says still counts, under the first offset as under the last.
    assert isinstance(ledger.find(0), Half)
    ledger.ended(0, Outcome.COMMITTED, 0)
    assert ledger.find(0) is ledger.find(15) is Outcome.COMMITTED


def test_a_round_looks_at_each_transaction_once_and_in_slices() -> None:
    ledger = Ledger()
    for offset in range(10):
        ledger.stored(half(offset))
    current = Round(ledger)
    seen = []
    while not current.done:
        for _, open_half in current.steps(MINUTE, RULES, always, 3):
            seen.append(open_half.queue_offset)
            ledger.moved(open_half.queue_offset, replace(open_half, queue_offset=ledger.next_half))
    assert seen == list(range(10))
    assert list(ledger.open) == list(range(10, 20))


def test_a_transaction_that_ends_during_a_round_is_not_asked_for() -> None:
    ledger = Ledger()
    ledger.stored(half(0))
    current = Round(ledger)
    ledger.ended(0, Outcome.ROLLED_BACK, 0)
    assert current.steps(MINUTE, RULES, always, 10) == []


def test_progress_stops_at_the_first_open_one_and_the_ops_needed_after_a_start() -> None:
    ledger = Ledger()
    for offset in range(4):
        ledger.stored(half(offset))
    ledger.ended(2, Outcome.COMMITTED, 0)
    ledger.ended(0, Outcome.COMMITTED, 1)
    assert ledger.progress() == (1, 0)
    ledger.ended(1, Outcome.COMMITTED, 2)
    assert ledger.progress() == (3, 3)
    ledger.ended(3, Outcome.COMMITTED, 3)
    assert ledger.progress() == (4, 4)


def test_the_first_word_counts() -> None:
    ledger = Ledger()
    ledger.stored(half(0))
    ledger.ended(0, Outcome.ROLLED_BACK, 0)
    ledger.ended(0, Outcome.COMMITTED, 1)
    assert ledger.find(0) is Outcome.ROLLED_BACK


def test_what_is_not_known_is_not_guessed() -> None:
    assert Ledger().find(7) is None


def test_recent_forgets_the_oldest() -> None:
    recent: Recent[str] = Recent(2)
    for key, value in ((1, "a"), (2, "b"), (1, "c"), (3, "d")):
        recent.put(key, value)
    assert (recent.get(1), recent.get(2), recent.get(3), len(recent)) == (None, "b", "d", 2)


def test_two_sends_of_one_message_object_stay_two_transactions_over_a_restart() -> None:
    first, second = replace(half(0), identity=9), replace(half(1), identity=9)
    replay = Replay(0)
    for record in (
        first,
        second,
        replace(first, queue_offset=2, checks=1),
        replace(second, queue_offset=3, checks=1),
    ):
        replay.half(record)
    assert list(replay.ledger.open) == [2, 3]


SHORT = RULES._replace(carry_distance=2, max_checks=4)


class Transactions(RuleBasedStateMachine):
    """Producers, rounds, restarts and lost producers in any order, against what a person would expect."""

    transactions = Bundle("transactions")

    @initialize()
    def start(self) -> None:
        self.now = 0
        self.ledger = Ledger()
        self.halves: list[Half] = []
        self.ops: list[int] = []
        self.saved = (0, 0)
        self.said: dict[int, Outcome] = {}
        self.offsets_of: dict[int, list[int]] = {}
        self.delivered: dict[int, int] = {}
        self.given_up: set[int] = set()

    def _store(self, record: Half) -> None:
        self.halves.append(record)
        self.offsets_of.setdefault(record.identity, []).append(record.queue_offset)

    @rule(target=transactions, immunity=st.sampled_from([None, None, 0, 90_000]), count=st.integers(1, 3))
    def prepare(self, immunity: int | None, count: int) -> object:
        made = []
        for _ in range(count):
            offset = len(self.halves)
            record = Half(offset, offset, "g", self.now, immunity, 0, None, offset)
            self._store(record)
            self.ledger.stored(replace(record))
            made.append(offset)
        return multiple(*made)

    @rule(name=transactions, commit=st.booleans(), which=st.integers(0, 20))
    def end(self, name: int, commit: bool, which: int) -> None:
        """Under any of the offsets that the producer may know."""
        offsets = self.offsets_of[name]
        offset = offsets[which % len(offsets)]
        standing = self.ledger.find(offset) or self.ledger.moved_before(name)
        if not isinstance(standing, Half):
            # Refused or already over; only what was put aside before a restart may be unknown.
            assert name in self.said or name in self.given_up, "an open transaction was refused"
            return
        assert name not in self.said, "a transaction ended twice"
        outcome = Outcome.COMMITTED if commit else Outcome.ROLLED_BACK
        self.said[name] = outcome
        if commit:
            self.delivered[name] = self.delivered.get(name, 0) + 1
        for ended in dict.fromkeys((standing.queue_offset, offset)):
            self.ops.append(ended)
            self.ledger.ended(ended, outcome, len(self.ops) - 1)

    @rule(online=st.booleans(), wait_ms=st.sampled_from([1_000, MINUTE]))
    def round(self, online: bool, wait_ms: int) -> None:
        self.now += wait_ms
        current = Round(self.ledger)
        for step, found in current.steps(self.now, SHORT, always if online else never, 1_000):
            assert found.identity not in self.said, "asked although it was over"
            if step is Step.GIVE_UP:
                assert found.checks == SHORT.max_checks
                self.ledger.gave_up(found.queue_offset)
                self.given_up.add(found.identity)
                continue
            record = replace(found, queue_offset=len(self.halves), checks=found.checks + (step is Step.CHECK))
            if step is Step.CARRY and record.first_offset is None:
                record.first_offset = found.queue_offset
            self._store(record)
            self.ledger.moved(found.queue_offset, replace(record))

    @rule()
    def save_progress(self) -> None:
        self.saved = self.ledger.progress()

    @rule(gone=consumes(transactions))
    def producer_forgets(self, gone: int) -> None:
        """Nobody will ever end this one; it must not get in the way of the others."""

    @rule()
    def restart(self) -> None:
        """Memory is gone; the queues and an older progress are what is left."""
        half_start, op_start = self.saved
        replay = Replay(half_start)
        for record in self.halves[half_start:]:
            replay.half(replace(record))
        for op_offset in range(max(0, op_start - 5), len(self.ops)):
            replay.op([self.ops[op_offset]], op_offset if op_offset >= op_start else None)
        self.ledger = replay.ledger
        self.ledger.next_half = len(self.halves)
        self.ledger.next_op = len(self.ops)

    @invariant()
    def nothing_is_delivered_twice_or_against_its_word(self) -> None:
        for name, count in getattr(self, "delivered", {}).items():
            assert count == 1 and self.said[name] is Outcome.COMMITTED

    @invariant()
    def everything_undecided_is_open(self) -> None:
        if not hasattr(self, "ledger"):
            return
        open_names = {found.identity for found in self.ledger.open.values()}
        undecided = set(self.offsets_of) - set(self.said) - self.given_up
        assert undecided <= open_names
        assert not open_names & set(self.said)
        assert len(open_names) == len(self.ledger.open)

    @invariant()
    def progress_never_passes_an_open_one(self) -> None:
        if hasattr(self, "ledger"):
            half_progress, op_progress = self.ledger.progress()
            assert all(offset >= half_progress for offset in self.ledger.open)
            needed = [i for i, offset in enumerate(self.ops) if offset >= half_progress]
            assert not needed or op_progress <= needed[0]


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
