"""Tasks cover exactly what is to be read, in order, few where little and many where much is to be read."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource

from orbitmq.spark.filters import MARGIN_MS, narrow
from orbitmq.spark.planning import SMALLEST_TASK, limit_bytes, limit_rows, plan, slices_between
from orbitmq.spark.pull_client import QueueSlice
from orbitmq.wire.fastjson import MessageQueue

QUEUES = [MessageQueue("t", "broker-a", number) for number in range(6)]

slice_lists = st.lists(
    st.builds(
        lambda queue, start, count: QueueSlice(queue, start, start + count),
        st.sampled_from(QUEUES),
        st.integers(0, 1000),
        st.integers(0, 300_000),
    ),
    max_size=6,
    unique_by=lambda piece: piece.queue,
)


def offsets_in(tasks: list[tuple[QueueSlice, ...]]) -> dict[MessageQueue, list[tuple[int, int]]]:
    found: dict[MessageQueue, list[tuple[int, int]]] = {}
    for task in tasks:
        for piece in task:
            found.setdefault(piece.queue, []).append((piece.start, piece.end))
    return found


@given(slice_lists, st.integers(1, 8), st.none() | st.integers(1, 50), st.none() | st.integers(1000, 100_000))
def test_tasks_cover_the_slices_once_and_in_order(
    slices: list[QueueSlice], cores: int, min_partitions: int | None, max_records: int | None
) -> None:
    tasks = plan(slices, cores=cores, min_partitions=min_partitions, max_records=max_records)
    found = offsets_in(tasks)
    for piece in slices:
        runs = found.pop(piece.queue, [])
        assert [end for _, end in runs[:-1]] == [start for start, _ in runs[1:]]
        covered = (runs[0][0], runs[-1][1]) if runs else (piece.start, piece.start)
        assert covered == (piece.start, piece.end)
    assert found == {}
    rows = [sum(piece.end - piece.start for piece in task) for task in tasks]
    assert all(rows)
    total = sum(rows)
    if min_partitions is not None:
        assert len(tasks) >= min(min_partitions, total)
        assert len(tasks) >= len(plan(slices, cores=cores, max_records=max_records))
    if max_records is not None:
        assert all(count <= max_records for count in rows)
    assert tasks == plan(slices, cores=cores, min_partitions=min_partitions, max_records=max_records)


def test_many_small_ranges_are_one_task() -> None:
    slices = [QueueSlice(queue, 100, 120) for queue in QUEUES]
    assert plan(slices, cores=8) == [tuple(slices)]


def test_one_large_range_is_cut_for_all_cores() -> None:
    tasks = plan([QueueSlice(QUEUES[0], 0, 10 * SMALLEST_TASK)], cores=4)
    assert len(tasks) == 4


def test_a_new_queue_begins_where_it_was_first_noted() -> None:
    start, end = {QUEUES[0]: 5}, {QUEUES[0]: 9, QUEUES[1]: 7}
    assert slices_between(start, end) == [QueueSlice(QUEUES[0], 5, 9)]
    assert slices_between(end, {QUEUES[0]: 9, QUEUES[1]: 8}) == [
        QueueSlice(QUEUES[0], 9, 9),
        QueueSlice(QUEUES[1], 7, 8),
    ]


def test_a_queue_that_was_made_anew_is_read_from_its_beginning() -> None:
    assert slices_between({QUEUES[0]: 50}, {QUEUES[0]: 3}) == [QueueSlice(QUEUES[0], 0, 3)]


places = st.dictionaries(
    st.sampled_from(QUEUES), st.tuples(st.integers(0, 100), st.integers(0, 500)), min_size=1
)


@given(places, st.integers(1, 600))
def test_a_limit_is_used_up_but_never_exceeded(table: dict[MessageQueue, tuple[int, int]], most: int) -> None:
    start = {queue: begin for queue, (begin, _) in table.items()}
    end = {queue: begin + count for queue, (begin, count) in table.items()}
    limited = limit_rows(start, end, most)
    assert all(start[queue] <= limited[queue] <= end[queue] for queue in table)
    waiting = sum(count for _, count in table.values())
    assert sum(limited[queue] - start[queue] for queue in table) == min(waiting, most)


def test_shares_follow_what_waits() -> None:
    start = dict.fromkeys(QUEUES[:3], 0)
    end = {QUEUES[0]: 1000, QUEUES[1]: 100, QUEUES[2]: 1}
    assert limit_rows(start, end, 111) == {QUEUES[0]: 100, QUEUES[1]: 10, QUEUES[2]: 1}


def test_bytes_limit_by_the_mean_size() -> None:
    start, end = {QUEUES[0]: 0}, {QUEUES[0]: 1000}
    assert limit_bytes(start, end, {QUEUES[0]: 100.0}, 5000) == {QUEUES[0]: 50}
    assert limit_bytes(start, end, {QUEUES[0]: 100.0}, 1) == {QUEUES[0]: 1}
    assert limit_bytes(start, end, {QUEUES[0]: 100.0}, 100_000) == end


def test_conditions_become_bounds() -> None:
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    ms = int(moment.timestamp() * 1000)
    filters: list[Any] = [
        datasource.EqualTo(("topic",), "t"),
        datasource.In(("queue_id",), (0, 1)),
        datasource.GreaterThan(("queue_offset",), 10),
        datasource.LessThanOrEqual(("queue_offset",), 20),
        datasource.GreaterThanOrEqual(("store_time",), moment),
        datasource.EqualTo(("tags",), "A"),
        datasource.IsNotNull(("tags",)),
        datasource.Not(datasource.EqualTo(("topic",), "x")),
    ]
    bounds = narrow(filters)
    assert (bounds.first_offset, bounds.end_offset) == (11, 21)
    assert bounds.from_ms == ms - MARGIN_MS
    assert bounds.tag_expression == "A"
    assert [queue.queue_id for queue in QUEUES if bounds.wants(queue)] == [0, 1]
    assert bounds.cut(QueueSlice(QUEUES[0], 15, 100)) == QueueSlice(QUEUES[0], 15, 21)
    assert bounds.cut(QueueSlice(QUEUES[0], 0, 5)) == QueueSlice(QUEUES[0], 11, 11)


def test_what_is_not_understood_bounds_nothing() -> None:
    strange = SimpleNamespace(attribute=("properties", "n"), value="1")
    assert narrow(
        [strange, datasource.EqualTo(("body",), b"x"), datasource.EqualTo(("topic",), None)]
    ) == narrow([])
    assert narrow([datasource.EqualTo(("tags",), "A || B")]).tag_expression is None
