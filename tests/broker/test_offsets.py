from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.broker.offsets import OffsetTable, split_key


def test_unknown_is_not_zero() -> None:
    table = OffsetTable()
    assert table.query("billing", "orders", 0) == -1
    assert table.queues("billing", "orders") is None


def test_commits_are_kept_per_topic_group_and_queue() -> None:
    table = OffsetTable()
    assert table.commit("billing", "orders", 0, 5)
    assert table.commit("billing", "orders", 1, 7)
    assert table.commit("audit", "orders", 0, 2)
    assert table.query("billing", "orders", 0) == 5
    assert table.table == {"orders@billing": {0: 5, 1: 7}, "orders@audit": {0: 2}}


def test_a_smaller_offset_is_accepted_and_noticed() -> None:
    table = OffsetTable()
    table.commit("billing", "orders", 0, 5)
    assert not table.commit("billing", "orders", 0, 3)
    assert table.query("billing", "orders", 0) == 3


def test_only_real_changes_make_the_table_dirty() -> None:
    table = OffsetTable()
    table.commit("billing", "orders", 0, 5)
    before = table.changes
    table.commit("billing", "orders", 0, 5)
    assert table.changes == before
    table.commit("billing", "orders", 0, 6)
    assert table.changes > before


@pytest.mark.parametrize(
    ("committed", "min_offset", "in_memory", "start"),
    [(5, 0, True, 5), (0, 9, False, 0), (None, 0, True, 0), (None, 0, False, None), (None, 3, True, None)],
)
def test_where_a_consumer_starts(
    committed: int | None, min_offset: int, in_memory: bool, start: int | None
) -> None:
    table = OffsetTable()
    if committed is not None:
        table.commit("billing", "orders", 2, committed)
    assert (
        table.start_offset("billing", "orders", 2, lambda t, q: min_offset, lambda t, q: in_memory) == start
    )


def test_topics_and_groups_find_each_other() -> None:
    table = OffsetTable()
    table.commit("billing", "orders", 0, 1)
    table.commit("billing", "refunds", 0, 1)
    table.commit("audit", "orders", 0, 1)
    assert table.topics_of("billing") == ["orders", "refunds"]
    assert table.groups_of("orders") == ["billing", "audit"]
    assert table.groups() == ["billing", "audit"]


def test_cloning_copies_so_that_the_groups_move_apart() -> None:
    table = OffsetTable()
    table.commit("billing", "orders", 0, 5)
    assert table.clone("billing", "copy", "orders")
    table.commit("copy", "orders", 0, 9)
    assert table.query("billing", "orders", 0) == 5
    assert not table.clone("nobody", "copy", "orders")


def test_removal_by_group_and_by_topic() -> None:
    table = OffsetTable()
    table.commit("billing", "orders", 0, 1)
    table.commit("billing", "refunds", 0, 1)
    table.commit("audit", "orders", 0, 1)
    assert table.remove_topic("orders") == 2
    assert table.remove_group("billing") == 1
    assert table.remove_group("billing") == 0
    assert table.table == {}


def test_the_slowest_group_counts_unless_its_messages_are_gone() -> None:
    table = OffsetTable()
    table.commit("billing", "orders", 0, 50)
    table.commit("audit", "orders", 0, 20)
    table.commit("dead", "orders", 0, 3)
    assert table.smallest("orders") == {0: 3}
    assert table.smallest("orders", min_offset=lambda q: 10) == {0: 20}
    assert table.smallest("orders", but_groups={"audit", "dead"}) == {0: 50}


def test_only_unused_groups_behind_all_data_are_forgotten() -> None:
    table = OffsetTable()
    table.commit("used", "orders", 0, 1)
    table.commit("old", "orders", 0, 1)
    table.commit("waiting", "orders", 0, 30)
    stale = table.drop_stale(lambda group, topic: group == "used", lambda topic, queue: 10)
    assert stale == ["orders@old"]
    assert table.groups() == ["used", "waiting"]


def test_merging_keeps_what_the_master_does_not_have() -> None:
    table = OffsetTable()
    table.commit("billing", "orders", 0, 1)
    table.commit("billing", "orders", 1, 2)
    table.merge({"offsetTable": {"orders@billing": {"0": 8}, "refunds@billing": {0: 1}}})
    assert table.table == {"orders@billing": {0: 8, 1: 2}, "refunds@billing": {0: 1}}


@pytest.mark.parametrize("damaged", [None, {"offsetTable": 3}, {"offsetTable": {"a@b": 1}}])
def test_a_damaged_table_is_refused(damaged: object) -> None:
    with pytest.raises(ValueError, match="JSON object"):
        OffsetTable().from_json(damaged)


names = st.text(alphabet="%|abcXYZ019_-", min_size=1, max_size=8)


@given(st.lists(st.tuples(names, names, st.integers(0, 7), st.integers(0, 2**63 - 1))))
def test_the_last_commit_is_what_is_read_and_saved(commits: list[tuple[str, str, int, int]]) -> None:
    table = OffsetTable()
    model: dict[tuple[str, str, int], int] = {}
    for group, topic, queue_id, offset in commits:
        table.commit(group, topic, queue_id, offset)
        model[group, topic, queue_id] = offset
    loaded = OffsetTable()
    loaded.from_json(table.to_json())
    for (group, topic, queue_id), offset in model.items():
        assert loaded.query(group, topic, queue_id) == offset
        assert topic in loaded.topics_of(group)
    assert sum(map(len, loaded.table.values())) == len(model)


@given(names, names)
def test_keys_split_where_they_were_joined(topic: str, group: str) -> None:
    assert split_key(f"{topic}@{group}") == (topic, group)
