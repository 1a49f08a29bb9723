"""`orbitmq store` on a store the Java broker wrote, whole and damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.commands import Commands

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"


@pytest.fixture
def orbitmq(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / "store", tmp_path / "store"))


def test_a_sound_store_is_exit_code_0(orbitmq: Commands) -> None:
    report = orbitmq.ok("store", "verify", str(GOLDEN / "store"), "--json").json
    assert report["ok"]
    assert report["findings"] == []
    assert report["records"] == 1430
    assert orbitmq.ok("store", "verify", str(GOLDEN / "store")).out.startswith("sound: 1,430 messages")


def test_damage_is_exit_code_5_and_names_the_place(orbitmq: Commands, store: Path) -> None:
    log = store / "commitlog" / "00000000000000000000"
    data = bytearray(log.read_bytes())
    data[500_000] ^= 0xFF
    log.write_bytes(data)
    ended = orbitmq("store", "verify", str(store), "--json")
    assert ended.code == 5
    assert not ended.json["ok"]
    assert any("commitlog/00000000000000000000" in finding["file"] for finding in ended.json["findings"])
    people = orbitmq("store", "verify", str(store))
    assert people.code == 5
    assert "DAMAGED" in people.out
    assert "commitlog/00000000000000000000" in people.out


def test_the_contents_are_shown_by_queue(orbitmq: Commands) -> None:
    contents = orbitmq.ok("store", "inspect", str(GOLDEN / "store"), "--json").json
    bulk = [queue for queue in contents["queues"] if queue["topic"] == "GoldenBulk"]
    assert [(queue["queue_id"], queue["records"]) for queue in bulk] == [(0, 450), (1, 450)]
    only = orbitmq.ok("store", "inspect", str(GOLDEN / "store"), "--topic", "GoldenBulk", "--json").json
    assert only["queues"] == bulk
    assert "GoldenBulk" in orbitmq.ok("store", "inspect", str(GOLDEN / "store")).out
    assert orbitmq("store", "inspect", str(GOLDEN / "store"), "--topic", "Nope").code == 3


def test_a_directory_without_a_store_is_exit_code_3(orbitmq: Commands, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        ended = orbitmq("store", "verify", str(path), "--json")
        assert ended.code == 3
        assert "commitlog" in ended.error["hint"]
