"""Fault after fault at random, two in a row and two at a time: under sync double write nothing acknowledged is lost.

Run by `make crash`; ORBITMQ_CRASH_ROUNDS says how many, ORBITMQ_CRASH_SEED repeats a run.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from statistics import median

import pytest

from tests.chaos.capability import PRIVILEGED_WANTED, require_privileges
from tests.chaos.checker import Verdict
from tests.chaos.faults import FAULTS, Fault, possible
from tests.chaos.harness import Shape
from tests.chaos.runs import Run

ROUNDS = int(os.environ.get("ORBITMQ_CRASH_ROUNDS", "6"))
SEED = int(os.environ.get("ORBITMQ_CRASH_SEED", "0")) or time.time_ns() % 1_000_000
ROUNDS_PER_CLUSTER = 8
# Without root there are no networks to cut and no small disks to fill: the other faults are left.
APART = PRIVILEGED_WANTED
SMALL_DISK_MIB = 96 if APART else 0
SHAPES = (
    Shape(brokers=3, controllers=3, etcd=3, namesrvs=2, apart=APART),
    Shape(brokers=2, controllers=1, namesrvs=2, apart=APART, settings={"flushDiskType": "ASYNC_FLUSH"}),
    Shape(brokers=3, controllers=1, namesrvs=1, apart=APART),
)

pytestmark = [pytest.mark.crash, pytest.mark.slow]


class Deck:
    """Deals each fault once before any comes again, those that a shape cannot have being put off to the next."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._cards: list[tuple[Fault, ...]] = []

    def draw(self, shape: Shape) -> tuple[Fault, ...]:
        while True:
            for card in self._cards:
                if possible(card, shape, small_disks=APART):
                    self._cards.remove(card)
                    return card
            fresh = list(FAULTS)
            self._random.shuffle(fresh)
            self._cards += fresh


Gaps = dict[str, list[float]]


def live(directory: Path, shape: Shape, rounds: int, random: Random, deck: Deck, gaps: Gaps) -> Verdict:
    """One cluster from its start to its judgement."""
    with Run(directory, shape, small_disks_mib=SMALL_DISK_MIB) as run:
        for number in range(rounds):
            faults = deck.draw(shape)
            heal = random.random() < 0.7 or number == rounds - 1
            print(
                f"  {' and '.join(fault.name for fault in faults)}{'' if heal else ', and at once'}",
                flush=True,
            )
            run.strike(*faults, hold_s=random.uniform(0.2, 5.0), heal=heal)
        verdict = run.finish()
    for struck in run.struck:
        if struck.was_whole and len(struck.faults) == 1:
            gaps[struck.faults[0].name].append(run.without_master_s(struck))
    print(f"  {verdict}", flush=True)
    return verdict


def lives() -> Iterator[tuple[int, int]]:
    for life, done in enumerate(range(0, ROUNDS, ROUNDS_PER_CLUSTER)):
        yield life, min(ROUNDS_PER_CLUSTER, ROUNDS - done)


def test_whatever_happens_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    if APART:
        require_privileges()
    print(f"seed {SEED} (ORBITMQ_CRASH_SEED)")
    random = Random(SEED)
    deck = Deck(random)
    gaps: Gaps = defaultdict(list)
    for life, rounds in lives():
        shape = SHAPES[life % len(SHAPES)]
        print(f"cluster {life + 1}: {shape}", flush=True)
        verdict = live(tmp_path / str(life), shape, rounds, random, deck, gaps)
        assert verdict.acknowledged > 100 * rounds, f"the load was too light to prove anything: {verdict}"
    print("| fault | rounds | median s without a master | worst |\n|---|---|---|---|")
    for name, times in sorted(gaps.items()):
        print(f"| {name} | {len(times)} | {median(times):.2f} | {max(times):.2f} |")
