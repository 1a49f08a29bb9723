from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from orbitmq.broker import persist
from orbitmq.broker.groups import GroupTable
from orbitmq.broker.offsets import OffsetTable
from orbitmq.broker.persist import ConfigDamaged, ConfigStore
from orbitmq.broker.topics import TopicConfig, TopicTable
from orbitmq.config import BrokerConfig
from orbitmq.store.disk import Disk

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "store" / "config"
NOW = 1_700_000_000_000


class Tables:
    """The three tables of a broker with their store."""

    def __init__(self, config_dir: Path, disk: Disk | None = None) -> None:
        config = BrokerConfig()
        config.broker_name, config.broker_cluster_name = "broker-a", "LabCluster"
        self.topics = TopicTable(config)
        self.groups = GroupTable(config)
        self.offsets = OffsetTable()
        self.store = ConfigStore(disk or Disk(), str(config_dir))
        self.store.add(persist.TOPICS, self.topics)
        self.store.add(persist.GROUPS, self.groups)
        self.store.add(persist.OFFSETS, self.offsets)


def test_files_of_a_java_broker_are_read_and_written_back_byte_for_byte(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True, copy_function=shutil.copyfile)
    tables = Tables(tmp_path)
    assert tables.store.load() == [persist.TOPICS, persist.GROUPS, persist.OFFSETS]
    assert tables.topics.data_version.counter == 15
    tags = tables.topics.get("GoldenTags")
    assert tags is not None
    assert tags.read_queue_nums == 4
    assert tables.groups.get("golden_tag_consumer") is not None
    assert tables.offsets.query("golden_tag_consumer", "GoldenTags", 2) == 27
    assert tables.store.dirty() == []
    for name in (persist.TOPICS, persist.GROUPS, persist.OFFSETS):
        assert tables.store.text(name) == (GOLDEN / name).read_bytes()


def test_a_restart_finds_what_was_saved(tmp_path: Path) -> None:
    first = Tables(tmp_path / "config")
    first.topics.put(TopicConfig("orders", 3, 2), NOW)
    first.groups.find("billing", NOW)
    first.offsets.commit("billing", "orders", 1, 42)
    assert set(first.store.save()) == {persist.TOPICS, persist.GROUPS, persist.OFFSETS}
    second = Tables(tmp_path / "config")
    second.store.load()
    assert second.topics.to_json() == first.topics.to_json()
    assert second.groups.to_json() == first.groups.to_json()
    assert second.offsets.table == {"orders@billing": {1: 42}}


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.store.save()
    assert tables.store.save() == []
    tables.offsets.commit("billing", "orders", 0, 1)
    tables.topics.put(TopicConfig("orders"), NOW)
    assert tables.store.save(persist.TOPICS) == [persist.TOPICS]
    assert tables.store.save() == [persist.OFFSETS]


def test_the_previous_content_is_kept_as_a_backup(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.offsets.commit("billing", "orders", 0, 1)
    tables.store.save()
    before = (tmp_path / persist.OFFSETS).read_bytes()
    tables.offsets.commit("billing", "orders", 0, 2)
    tables.store.save()
    assert (tmp_path / (persist.OFFSETS + ".bak")).read_bytes() == before


@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "wrong"])
def test_a_damaged_file_is_replaced_by_its_backup_which_survives(tmp_path: Path, damage: str) -> None:
    tables = Tables(tmp_path)
    for offset in (1, 2):
        tables.offsets.commit("billing", "orders", 0, offset)
        tables.store.save()
    path = tmp_path / persist.OFFSETS
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "torn": path.read_bytes()[:20], "wrong": b"[1,2]"}[damage])
    backup = (tmp_path / (persist.OFFSETS + ".bak")).read_bytes()
    again = Tables(tmp_path)
    again.store.load()
    assert again.offsets.query("billing", "orders", 0) == 1
    assert persist.OFFSETS in again.store.dirty()
    again.store.save()
    assert path.read_bytes() == backup
    assert (tmp_path / (persist.OFFSETS + ".bak")).read_bytes() == backup


def test_two_damaged_files_stop_the_start_instead_of_losing_the_table(tmp_path: Path) -> None:
    for suffix in ("", ".bak"):
        (tmp_path / (persist.TOPICS + suffix)).write_bytes(b'{"topicConfigTable":')
    with pytest.raises(ConfigDamaged, match=r"topics\.json"):
        Tables(tmp_path).store.load()


def test_nothing_saved_yet_is_a_fresh_start(tmp_path: Path) -> None:
    assert Tables(tmp_path / "config").store.load() == []


def test_an_older_snapshot_never_overwrites_a_newer_file(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.store.save()
    tables.offsets.commit("billing", "orders", 0, 1)
    (old,) = tables.store.snapshot()
    tables.offsets.commit("billing", "orders", 0, 2)
    tables.store.save()
    tables.store.write(old)
    again = Tables(tmp_path)
    again.store.load()
    assert again.offsets.query("billing", "orders", 0) == 2


class FullDisk(Disk):
    full = False

    def write_atomic(self, path: object, data: bytes, backup: bool = True) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "no space left")
        super().write_atomic(str(path), data, backup)


def test_a_failed_write_is_tried_again(tmp_path: Path) -> None:
    disk = FullDisk()
    tables = Tables(tmp_path, disk)
    tables.store.save()
    tables.offsets.commit("billing", "orders", 0, 1)
    disk.full = True
    with pytest.raises(OSError, match="no space"):
        tables.store.save()
    disk.full = False
    assert tables.store.save() == [persist.OFFSETS]
