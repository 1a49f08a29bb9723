from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from orbitmq.local_cluster import (
    FILE,
    BadPlan,
    Ports,
    Shape,
    further_brokers,
    group_name,
    load_ports,
    plan,
    save,
)


def settings(args: tuple[str, ...]) -> dict[str, str]:
    return dict(args[i + 1].split("=", 1) for i, word in enumerate(args) if word == "--set")


def test_fixed_roles_without_a_controller(tmp_path: Path) -> None:
    shape = Shape(masters=2, slaves=2, controllers=0, namesrvs=2, replication="sync")
    namesrvs, masters, slaves = plan(shape, tmp_path, Ports())
    assert [member.name for member in namesrvs] == ["namesrv-1", "namesrv-2"]
    assert [member.name for member in masters] == ["broker-a-1", "broker-b-1"]
    assert [member.name for member in slaves] == ["broker-a-2", "broker-a-3", "broker-b-2", "broker-b-3"]
    first = settings(masters[0].spec.args)
    assert (first["brokerName"], first["brokerRole"]) == ("broker-a", "SYNC_MASTER")
    assert "brokerId" not in first
    last = settings(slaves[-1].spec.args)
    assert (last["brokerName"], last["brokerRole"], last["brokerId"]) == ("broker-b", "SLAVE", "2")
    assert f"{namesrvs[0].address};{namesrvs[1].address}" in slaves[0].spec.args
    assert len({member.address for stage in (namesrvs, masters, slaves) for member in stage}) == 8


def test_controllers_decide_roles(tmp_path: Path) -> None:
    shape = Shape(
        1, 1, 2, 1, "async", "127.0.0.1:2379", 1500, {"inSyncReplicas": "1", "brokerRole": "SYNC_MASTER"}
    )
    _, controllers, masters, slaves = plan(shape, tmp_path, Ports())
    assert "--etcd" in controllers[1].spec.args
    assert "1500" in controllers[1].spec.args
    for (member,) in (masters, slaves):
        chosen = settings(member.spec.args)
        assert chosen["enableControllerMode"] == "true"
        assert chosen["controllerAddr"] == ";".join(each.address for each in controllers)
        assert chosen["inSyncReplicas"] == "1"
        assert chosen["brokerRole"] == "SYNC_MASTER"  # what a person sets wins
        assert "brokerId" not in chosen
    # The next time any of them may have to be master: they start together.
    (tmp_path / "broker-a-1").mkdir()
    again = plan(shape, tmp_path, Ports())
    assert [member.name for member in again[-1]] == ["broker-a-1", "broker-a-2"]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (Shape(controllers=2), "--etcd"),
        (Shape(controllers=0, etcd="a:1"), "--controllers 1"),
        (Shape(masters=0), "0 masters"),
        (Shape(slaves=-1), "-1 slaves"),
        (Shape(namesrvs=0), "0 name servers"),
        (Shape(replication="maybe"), "sync or async"),
    ],
)
def test_a_shape_that_cannot_be_says_what_to_change(tmp_path: Path, shape: Shape, words: str) -> None:
    with pytest.raises(BadPlan, match=words):
        plan(shape, tmp_path, Ports())


def test_addresses_stay_over_restarts_and_new_members_get_new_ones(tmp_path: Path) -> None:
    ports = load_ports(tmp_path)
    before = plan(Shape(1, 0, 0, 1), tmp_path, ports)
    save(tmp_path, ports, "somewhere", [{"name": "broker-a-1", "pid": 1}])
    assert json.loads((tmp_path / FILE).read_text())["processes"] == [{"name": "broker-a-1", "pid": 1}]
    after = plan(Shape(2, 1, 0, 1), tmp_path, load_ports(tmp_path))
    assert [member.address for member in after[0]] == [member.address for member in before[0]]
    assert after[1][0].address == before[1][0].address
    # Each broker has two more ports beside its own.
    broker_ports = sorted(int(member.address.split(":")[1]) for stage in after[1:] for member in stage)
    assert all(high - low > 3 for low, high in pairwise(broker_ports))
    (tmp_path / FILE).write_text('{"ports": 3}')
    with pytest.raises(BadPlan, match="delete it"):
        load_ports(tmp_path)


def test_groups_have_names_of_their_own() -> None:
    assert [group_name(number) for number in (0, 1, 25, 26)] == [
        "broker-a",
        "broker-b",
        "broker-z",
        "broker-27",
    ]


def test_further_brokers_share_settings_and_no_files_or_ports() -> None:
    given = {
        "flushDiskType": "ASYNC_FLUSH",
        "storePathCommitLog": "elsewhere",
        "haListenPort": "1",
        "listenPort": "2",
    }
    two, three = further_brokers(
        3, given, name="host", ip="10.0.0.1", port=10911, data="data", namesrv="ns:9876"
    )
    chosen = settings(three.args)
    assert (two.name, three.name) == ("broker-2", "broker-3")
    assert (chosen["brokerName"], chosen["listenPort"], chosen["haListenPort"]) == ("host-3", "10931", "0")
    assert chosen["storePathRootDir"] == "data/broker-3"
    assert chosen["storePathCommitLog"] == "data/broker-3/commitlog"
    assert (chosen["flushDiskType"], chosen["namesrvAddr"], chosen["brokerIP1"]) == (
        "ASYNC_FLUSH",
        "ns:9876",
        "10.0.0.1",
    )
    (any_port,) = further_brokers(2, {}, name="h", ip="i", port=0, data="d", namesrv="n")
    assert settings(any_port.args)["listenPort"] == "0"
