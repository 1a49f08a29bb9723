"""The checker is the judge of every fault run, so it is judged itself: sound histories pass, planted faults do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.checker import judge, longest_silence
from tests.chaos.history import (
    SEND_OK,
    Answer,
    Attempt,
    Delivery,
    Event,
    History,
    Queue,
    Recorder,
    load_history,
)

QUEUES = [Queue("T", "broker-a", 0), Queue("T", "broker-a", 1), Queue("T", "broker-b", 0)]
FAILURES = ("timeout", "SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT")


def sound_history(seed: int, count: int = 60) -> History:
    """As a cluster would make it that loses answers, stores what it did not answer, and delivers twice."""
    random = Random(seed)
    history = History()
    now = 0.0
    logs: dict[Queue, list[str]] = {queue: [] for queue in QUEUES}
    for number in range(count):
        key, queue = f"m{number}", random.choice(QUEUES)
        now += random.uniform(0.001, 0.1)
        history.attempts.append(Attempt(now, key, f"sender-{number % 3}"))
        fails, stored = random.random() < 0.2, random.random() < 0.5
        if not fails or stored:
            logs[queue].append(key)
        now += random.uniform(0.001, 0.1)
        if fails:
            refused = not stored and random.random() < 0.5
            status = "SERVICE_NOT_AVAILABLE" if refused else random.choice(FAILURES)
            history.answers.append(Answer(now, key, status))
        else:
            history.answers.append(Answer(now, key, SEND_OK, queue, len(logs[queue]) - 1))
    for queue, keys in logs.items():
        at = now
        start = 0
        while start < len(keys):
            for offset in range(start, len(keys)):
                at += 0.001
                history.deliveries.append(Delivery(at, keys[offset], queue, offset, "consumer"))
                if random.random() < 0.05:
                    start = random.randint(max(0, offset - 5), offset)  # its commit was lost
                    break
            else:
                start = len(keys)
    return history


def acknowledged_delivery(history: History, random: Random) -> Delivery:
    acks = {answer.key for answer in history.acknowledged}
    return random.choice([delivery for delivery in history.deliveries if delivery.key in acks])


@given(st.integers(0, 10_000))
def test_a_sound_history_passes(seed: int) -> None:
    history = sound_history(seed)
    verdict = judge(history)
    assert verdict.problems == []
    assert verdict.acknowledged + verdict.indeterminate == verdict.attempted == 60
    assert verdict.delivered == verdict.acknowledged + verdict.recovered
    assert verdict.redelivered == len(history.deliveries) - verdict.delivered
    assert verdict.open == 0


@given(st.integers(0, 10_000))
def test_a_lost_message_is_found(seed: int) -> None:
    history = sound_history(seed)
    victim = acknowledged_delivery(history, Random(seed)).key
    history.deliveries = [delivery for delivery in history.deliveries if delivery.key != victim]
    verdict = judge(history)
    assert [case.split()[0] for case in verdict.lost] == [victim]
    assert not verdict.ok


@given(st.integers(0, 10_000))
def test_a_message_that_was_not_acknowledged_may_be_missing(seed: int) -> None:
    history = sound_history(seed)
    acks = {answer.key for answer in history.acknowledged}
    history.deliveries = [delivery for delivery in history.deliveries if delivery.key in acks]
    assert judge(history).ok
    assert judge(history).recovered == 0


@given(st.integers(0, 10_000))
def test_a_message_stored_twice_is_found(seed: int) -> None:
    history = sound_history(seed)
    twin = acknowledged_delivery(history, Random(seed))
    end = 1 + max(delivery.offset for delivery in history.deliveries if delivery.queue == twin.queue)
    late = max(delivery.at for delivery in history.deliveries) + 1
    history.deliveries.append(twin._replace(offset=end, at=late))
    verdict = judge(history)
    assert [case.split()[0] for case in verdict.duplicated] == [twin.key]
    history.attempts = [
        attempt._replace(resends=True) if attempt.key == twin.key else attempt for attempt in history.attempts
    ]
    verdict = judge(history)
    assert (verdict.duplicated, verdict.resent) == ([], 1)


@given(st.integers(0, 10_000))
def test_a_message_nobody_sent_is_found(seed: int) -> None:
    history = sound_history(seed)
    changed = Random(seed).choice(history.deliveries)
    history.attempts = [attempt for attempt in history.attempts if attempt.key != changed.key]
    history.answers = [answer for answer in history.answers if answer.key != changed.key]
    verdict = judge(history)
    assert [case.split()[0] for case in verdict.unexpected] == [changed.key]


@given(st.integers(0, 10_000))
def test_two_messages_that_changed_places_are_found(seed: int) -> None:
    history = sound_history(seed)
    random = Random(seed)
    one = acknowledged_delivery(history, random)
    others = [
        delivery
        for delivery in history.deliveries
        if delivery.queue == one.queue and delivery.offset != one.offset
    ]
    other = random.choice(others)
    names = {one.key: other.key, other.key: one.key}
    history.deliveries = [
        delivery._replace(key=names.get(delivery.key, delivery.key)) for delivery in history.deliveries
    ]
    # The answers tell the same tale, so that only the order is wrong: the broker stored them the other way round.
    spots = {delivery.key: delivery.offset for delivery in history.deliveries}
    history.answers = [
        answer._replace(offset=spots[answer.key])
        if answer.key in names and answer.status == SEND_OK
        else answer
        for answer in history.answers
    ]
    verdict = judge(history)
    first = min(names, key=lambda key: int(key[1:]))
    if first in {answer.key for answer in history.acknowledged}:
        assert verdict.reordered
    else:  # one that was never acknowledged may come late
        assert verdict.lost == [] and verdict.contradicted == []


@given(st.integers(0, 10_000))
def test_a_stretch_delivered_late_is_found(seed: int) -> None:
    history = sound_history(seed)
    queue = Random(seed).choice(QUEUES)
    mine = sorted({delivery.offset for delivery in history.deliveries if delivery.queue == queue})
    skipped = mine[len(mine) // 2]
    late = max(delivery.at for delivery in history.deliveries) + 1
    history.deliveries = [
        delivery._replace(at=late) if (delivery.queue, delivery.offset) == (queue, skipped) else delivery
        for delivery in history.deliveries
    ]
    assert bool(judge(history).reordered) == (skipped != mine[-1])
    assert judge(history, arrives_in_order=False).reordered == []


@given(st.integers(0, 10_000))
def test_a_place_that_held_two_messages_is_found(seed: int) -> None:
    """What a consumer sees when a log is cut behind its back and other messages take the places."""
    history = sound_history(seed)
    place = Random(seed).choice(history.deliveries)
    history.attempts.append(Attempt(0.0, "cut away", "sender"))
    history.answers.append(Answer(0.5, "cut away", "timeout"))
    history.deliveries.append(place._replace(key="cut away", at=0.9))
    assert any("cut away" in case for case in judge(history).contradicted)


@given(st.integers(0, 10_000))
def test_an_acknowledgement_that_names_another_place_is_found(seed: int) -> None:
    history = sound_history(seed)
    index = Random(seed).choice([n for n, answer in enumerate(history.answers) if answer.status == SEND_OK])
    history.answers[index] = history.answers[index]._replace(offset=1_000_000)
    assert any(history.answers[index].key in case for case in judge(history).contradicted)


@given(st.integers(0, 10_000))
def test_a_refusal_that_was_not_true_is_found(seed: int) -> None:
    history = sound_history(seed)
    arrived = {delivery.key for delivery in history.deliveries}
    index = Random(seed).choice([n for n, answer in enumerate(history.answers) if answer.key in arrived])
    history.answers[index] = history.answers[index]._replace(status="SERVICE_NOT_AVAILABLE")
    assert [case.split()[0] for case in judge(history).denied] == [history.answers[index].key]


def test_two_masters_that_give_one_place_twice_are_found() -> None:
    queue = QUEUES[0]
    history = History(
        [Attempt(1.0, "a", "s"), Attempt(1.0, "b", "t")],
        [Answer(1.1, "a", SEND_OK, queue, 0), Answer(1.2, "b", SEND_OK, queue, 0)],
        [Delivery(2.0, "b", queue, 0, "c")],
    )
    verdict = judge(history)
    assert len(verdict.lost) == 1
    assert any("was acknowledged for a and for b" in case for case in verdict.contradicted)


def test_without_consumers_everything_is_lost() -> None:
    history = replace(sound_history(1), deliveries=[])
    assert len(judge(history).lost) == len(history.acknowledged)


@given(st.integers(0, 10_000))
def test_what_one_group_got_and_another_did_not_is_lost(seed: int) -> None:
    history = sound_history(seed)
    victim = acknowledged_delivery(history, Random(seed)).key
    others = [delivery._replace(group="other", at=delivery.at + 0.5) for delivery in history.deliveries]
    history.deliveries += [delivery for delivery in others if delivery.key != victim]
    verdict = judge(history)
    assert [case.split()[0] for case in verdict.lost] == [victim]
    assert "to other" in verdict.lost[0]


def test_a_key_used_twice_is_the_loads_own_fault() -> None:
    history = sound_history(1)
    history.attempts.append(history.attempts[0])
    with pytest.raises(ValueError, match="one key to two messages"):
        judge(history)


def test_attempts_that_never_ended_are_counted() -> None:
    history = sound_history(1)
    history.attempts.append(Attempt(99.0, "hangs", "s"))
    assert (judge(history).open, judge(history).ok) == (1, True)


def test_the_longest_time_without_an_acknowledgement_is_counted_per_group() -> None:
    a, b = QUEUES[0], QUEUES[2]
    answers = [Answer(float(at), f"a{at}", SEND_OK, a, n) for n, at in enumerate((1, 2, 7, 8))]
    answers += [Answer(float(at), f"b{at}", SEND_OK, b, n) for n, at in enumerate((1, 2, 3, 4))]
    answers += [Answer(5.0, "no", "SLAVE_NOT_AVAILABLE", a, 9)]  # no acknowledgement
    history = History([Attempt(answer.at - 0.5, answer.key, "s") for answer in answers], answers)
    history.attempts.append(Attempt(10.0, "last", "s"))
    assert judge(history).silence_s == {"broker-a": 5.0, "broker-b": 6.0}
    assert longest_silence(history, "broker-a", 3.0, 6.0) == 5.0
    assert longest_silence(history, "broker-a", 3.0, 6.0, any_stored=True) == 3.0
    assert longest_silence(history, "broker-a", 7.5, 9.0) == 1.0
    assert longest_silence(history, "broker-b", 0.0, 9.0) == 1.0


def test_what_is_recorded_is_what_is_loaded(tmp_path: Path) -> None:
    history = sound_history(3)
    history.events.append(Event(4.0, "killed the master"))
    recorders = [Recorder(tmp_path / name) for name in ("one", "two")]
    for attempt in history.attempts:
        recorders[0].attempt(attempt)
    for answer in history.answers:
        recorders[1].answer(answer)
    for delivery in history.deliveries:
        recorders[0].delivery(delivery)
    recorders[1].event(history.events[0])
    loaded = load_history([tmp_path / "one", tmp_path / "two"])
    for recorder in recorders:
        recorder.close()
    assert loaded.attempts == history.attempts
    assert loaded.answers == history.answers
    assert loaded.deliveries == sorted(history.deliveries)
    assert loaded.events == history.events
