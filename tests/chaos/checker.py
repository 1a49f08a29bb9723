"""Judges a history in the manner of Jepsen's total-queue: what went in must come out, once, in order, unchanged.

Everything is computed from the history alone. SEND_OK is the only acknowledgement: any other answer, and no answer,
is indeterminate, which means that the message may be there or not, but if it is there it is there once. An answer that
refuses the message must be true, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos.history import SEND_OK, Answer, Attempt, Delivery, History, Queue

SHOWN = 5
# Answers that say that nothing was stored; clients send such a message again without fear of a second copy.
REFUSALS = frozenset({"SERVICE_NOT_AVAILABLE", "SYSTEM_BUSY", "NO_PERMISSION", "TOPIC_NOT_EXIST"})
Place = tuple[Queue, int]


@dataclass
class Verdict:
    attempted: int = 0
    acknowledged: int = 0
    delivered: int = 0
    """Messages, not deliveries."""
    redelivered: int = 0
    """Deliveries of one stored message after its first: at least once is what consumers are promised."""
    indeterminate: int = 0
    recovered: int = 0
    """Indeterminate ones that arrived all the same."""
    resent: int = 0
    """Stored more than once because their own client sent them more than once."""
    open: int = 0
    """Attempts that never ended, not even by a timeout: the load was cut off."""
    lost: list[str] = field(default_factory=list)
    """Acknowledged, never delivered."""
    duplicated: list[str] = field(default_factory=list)
    """Sent once, stored at two places."""
    reordered: list[str] = field(default_factory=list)
    """Stored before a message that had been acknowledged before this one was sent, or first delivered behind it."""
    unexpected: list[str] = field(default_factory=list)
    """Delivered, never sent, or not as it was sent."""
    contradicted: list[str] = field(default_factory=list)
    """One place that held two messages, or a message that is not at the place its acknowledgement named."""
    denied: list[str] = field(default_factory=list)
    """Delivered, though the broker had said that it did not take it."""
    silence_s: dict[str, float] = field(default_factory=dict)
    """Per broker group the longest time without any acknowledgement while there were attempts."""
    answers: Counter[str] = field(default_factory=Counter)

    @property
    def problems(self) -> list[str]:
        kinds = ("lost", "duplicated", "reordered", "unexpected", "contradicted", "denied")
        found = []
        for kind in kinds:
            cases: list[str] = getattr(self, kind)
            if cases:
                more = f" and {len(cases) - SHOWN} more" if len(cases) > SHOWN else ""
                found.append(f"{len(cases)} {kind}: " + "; ".join(cases[:SHOWN]) + more)
        return found

    @property
    def ok(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        silence = ", ".join(f"{group} {gap:.2f} s" for group, gap in sorted(self.silence_s.items()))
        return (
            f"attempted {self.attempted}, acknowledged {self.acknowledged}, delivered {self.delivered}, "
            f"lost {len(self.lost)}, duplicated {len(self.duplicated)}, reordered {len(self.reordered)}, "
            f"unexpected {len(self.unexpected)}, contradicted {len(self.contradicted)}, denied {len(self.denied)}, "
            f"indeterminate {self.indeterminate} (of these {self.recovered} arrived), resent {self.resent}, "
            f"redelivered {self.redelivered}; longest without acknowledgement: {silence or 'none'}"
        )


def judge(history: History, *, arrives_in_order: bool = True) -> Verdict:
    """`arrives_in_order=False`: consumers with many threads, of whose deliveries only the offsets tell the order."""
    attempts = {attempt.key: attempt for attempt in history.attempts}
    if len(attempts) != len(history.attempts):
        raise ValueError("the load gave one key to two messages: such a history proves nothing")
    acks = {answer.key: answer for answer in history.acknowledged}
    verdict = Verdict(attempted=len(attempts), acknowledged=len(acks))
    verdict.answers = Counter(answer.status for answer in history.answers)
    verdict.open = len(attempts.keys() - {answer.key for answer in history.answers})

    groups: dict[str, list[Delivery]] = defaultdict(list)
    holders: dict[Place, Delivery] = {}
    places: dict[str, list[Place]] = defaultdict(list)
    for delivery in sorted(history.deliveries):
        place = (delivery.queue, delivery.offset)
        first = holders.setdefault(place, delivery)
        if first.key != delivery.key:
            verdict.contradicted.append(f"{_at(place)} held {first.key} and later {delivery.key}")
        if place not in places[delivery.key]:
            places[delivery.key].append(place)
        groups[delivery.group].append(delivery)

    # Every group of consumers must get everything, in order.
    for group, deliveries in groups.items():
        firsts = {(one.queue, one.offset): one for one in reversed(deliveries)}
        verdict.redelivered += len(deliveries) - len(firsts)
        arrived = {delivery.key for delivery in deliveries}
        lost = [key for key in acks if key not in arrived]
        verdict.lost += [f"{key} ({_described(acks[key])}){_to(group)}" for key in lost]
        if arrives_in_order:
            verdict.reordered += _overtaken(firsts.values())
    if not groups and acks:
        verdict.lost = list(acks)

    verdict.delivered = len(places)
    verdict.unexpected = [f"{key} at {_at(where[0])}" for key, where in places.items() if key not in attempts]
    verdict.indeterminate = len(attempts) - len(attempts.keys() & acks.keys())
    verdict.recovered = sum(key in attempts and key not in acks for key in places)
    resending = {attempt.key for attempt in history.attempts if attempt.resends}
    for key, where in places.items():
        if len(where) > 1:
            if key in resending:
                verdict.resent += 1
            else:
                verdict.duplicated.append(f"{key} at {' and '.join(map(_at, where))}")
    verdict.denied = [
        f"{answer.key} at {_at(places[answer.key][0])} after {answer.status}"
        for answer in history.answers
        if answer.status in REFUSALS and answer.key in places and answer.key not in resending
    ]
    waiting = {attempt.key for attempt in history.attempts if attempt.waits}
    placed = [ack for ack in history.acknowledged if ack.key not in waiting]
    verdict.contradicted += _wrong_places(placed, places, holders)
    verdict.reordered += _reordered(holders.values(), attempts, acks)
    verdict.silence_s = _silences(history)
    return verdict


def longest_silence(
    history: History, broker: str, since: float, until: float, *, any_stored: bool = False
) -> float:
    """The longest time without an acknowledgement of this group that lies at least partly between two moments.

    `any_stored`: an answer that the message is stored, however safely, is enough. That is what a master alone can
    give, so this is the time without one.
    """
    answers = [answer for answer in history.answers if answer.queue and answer.queue.broker == broker]
    times = sorted(answer.at for answer in answers if any_stored or answer.status == SEND_OK)
    gaps = (end - start for start, end in pairwise(times) if end > since and start < until)
    return max(gaps, default=0.0)


def _wrong_places(
    acks: Sequence[Answer], places: dict[str, list[Place]], firsts: dict[Place, Delivery]
) -> list[str]:
    """Acknowledgements that name a place where another message is, or that two of them name."""
    found = []
    owners: dict[Place, str] = {}
    for ack in acks:
        if ack.queue is None:
            found.append(f"{ack.key} was acknowledged without a place")
            continue
        place = (ack.queue, ack.offset)
        other = owners.setdefault(place, ack.key)
        if other != ack.key:
            found.append(f"{_at(place)} was acknowledged for {other} and for {ack.key}")
        delivered = firsts.get(place)
        if delivered is not None and delivered.key != ack.key:
            found.append(f"{_at(place)} was acknowledged for {ack.key} and held {delivered.key}")
        elif delivered is None and places.get(ack.key):
            found.append(f"{ack.key} was acknowledged at {_at(place)} and was at {_at(places[ack.key][0])}")
    return found


def _overtaken(firsts: Iterable[Delivery]) -> list[str]:
    return [
        f"{queue}: {before.offset} was first delivered after {after.offset}"
        for queue, deliveries in _by_queue(firsts).items()
        for before, after in pairwise(deliveries)
        if before.at > after.at
    ]


def _reordered(
    firsts: Iterable[Delivery], attempts: dict[str, Attempt], acks: dict[str, Answer]
) -> list[str]:
    found = []
    for queue, deliveries in _by_queue(firsts).items():
        # From the end: what lies behind must not have been acknowledged before this one was sent.
        earliest: Answer | None = None
        for delivery in reversed(deliveries):
            attempt = attempts.get(delivery.key)
            if attempt and earliest and earliest.at < attempt.at:
                found.append(
                    f"{queue}: {delivery.key} at {delivery.offset} was sent after {earliest.key} "
                    f"at {earliest.offset} had been acknowledged"
                )
            ack = acks.get(delivery.key)
            # A message that its client sent twice has two places; only the one that was acknowledged has an order.
            if ack and ack.offset == delivery.offset and (earliest is None or ack.at < earliest.at):
                earliest = ack
    return found


def _by_queue(firsts: Iterable[Delivery]) -> dict[Queue, list[Delivery]]:
    queues: dict[Queue, list[Delivery]] = defaultdict(list)
    for delivery in firsts:
        queues[delivery.queue].append(delivery)
    for deliveries in queues.values():
        deliveries.sort(key=lambda delivery: delivery.offset)
    return queues


def _silences(history: History) -> dict[str, float]:
    """Between two acknowledgements, and from the last one to the last attempt."""
    if not history.attempts:
        return {}
    last_attempt = max(attempt.at for attempt in history.attempts)
    times: dict[str, list[float]] = defaultdict(list)
    for answer in history.acknowledged:
        if answer.queue is not None:
            times[answer.queue.broker].append(answer.at)
    gaps = {}
    for group, moments in times.items():
        moments = sorted(moments)
        moments.append(max(last_attempt, moments[-1]))
        gaps[group] = max(end - start for start, end in pairwise(moments))
    return gaps


def _at(place: Place) -> str:
    return f"{place[0]} offset {place[1]}"


def _to(group: str) -> str:
    return f" to {group}" if group else ""


def _described(ack: Answer) -> str:
    assert ack.status == SEND_OK
    return f"acknowledged at {ack.at:.3f} as {ack.queue} offset {ack.offset}"
