"""The faults that matter most, once each, under sync double write: nothing that was acknowledged is lost.

All faults, again and again and two at a time, are in `test_failover_long.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.capability import PRIVILEGED_WANTED, require_privileges
from tests.chaos.faults import CUT_OFF_MASTER, FREEZE_MASTER, KILL_MASTER, STALE_SLAVE_ALONE, Fault
from tests.chaos.harness import LEASE_MS, Shape
from tests.chaos.runs import Run

# Far above the goal, which is for a machine that has nothing else to do: what it takes is printed.
LIMIT_S = 12.0
CASES = [
    pytest.param(KILL_MASTER, Shape(brokers=3), id="kill"),
    pytest.param(FREEZE_MASTER, Shape(brokers=2), id="freeze"),
]
if PRIVILEGED_WANTED:
    CASES.append(pytest.param(CUT_OFF_MASTER, Shape(brokers=3, apart=True), id="cut-off"))


@pytest.mark.parametrize(("fault", "shape"), CASES)
def test_nothing_acknowledged_is_lost_with_the_master(tmp_path: Path, fault: Fault, shape: Shape) -> None:
    if shape.apart:
        require_privileges()
    with Run(tmp_path, shape) as run:
        run.strike(fault)
        verdict = run.finish()
    (struck,) = run.struck
    gap_s = run.without_master_s(struck)
    print(f"{fault.name}: {gap_s:.2f} s without a master, lease {LEASE_MS / 1000:g} s; {verdict}")
    assert verdict.acknowledged > 200, f"the load was too light to prove anything: {verdict}"
    assert gap_s < LIMIT_S


def test_a_slave_that_missed_something_does_not_become_master(tmp_path: Path) -> None:
    with Run(tmp_path, Shape(brokers=3)) as run:
        run.strike(STALE_SLAVE_ALONE)
        verdict = run.finish()
    assert verdict.acknowledged > 200, f"the load was too light to prove anything: {verdict}"
