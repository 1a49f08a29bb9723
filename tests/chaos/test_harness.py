"""The machinery of fault runs on one broker: what survives a kill passes, what does not survive is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.chaos.faults import Fault, Mend
from tests.chaos.harness import ChaosCluster, Shape
from tests.chaos.runs import Run

ALONE = Shape(brokers=1, controllers=0, sync=False)


def kill_broker(cluster: ChaosCluster) -> Mend:
    cluster.brokers[0].kill()
    return cluster.brokers[0].start


def kill_and_wipe(cluster: ChaosCluster) -> Mend:
    (node,) = cluster.brokers
    node.kill()
    shutil.rmtree(cluster.store(node.name))

    def mend() -> None:
        node.start()
        cluster.create_topic("Chaos", 4)

    return mend


def test_a_broker_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    with Run(tmp_path, ALONE) as run:
        run.strike(Fault("kill the broker", kill_broker), hold_s=1.0)
        verdict = run.finish()
    assert verdict.acknowledged > 50, f"the load was too light to prove anything: {verdict}"
    assert run.without_master_s(run.struck[0]) >= 1.0


def test_a_broker_whose_store_is_gone_is_found_out(tmp_path: Path) -> None:
    with Run(tmp_path, ALONE) as run:
        run.strike(Fault("kill the broker and wipe its disk", kill_and_wipe), hold_s=1.0)
        with pytest.raises(AssertionError, match="acknowledged messages are not where they should be"):
            run.finish(drain_s=5.0)
