"""Records of a pull, copied by the accelerator and by its Python twin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq import accel
from orbitmq.store import reading
from orbitmq.store.consume_queue import UNIT
from orbitmq.store.inner_message import InnerMessage
from orbitmq.store.message_store import MessageStore
from orbitmq.store.settings import StoreSettings
from tests.support.send_sides import HastyDisk

if accel.gather is None:
    pytest.skip("the accelerator is not built", allow_module_level=True)

FILE_BYTES = 4096
QUEUES = 3


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    """200 messages of all sizes in three queues and a dozen log files."""
    root = tmp_path_factory.mktemp("gather")
    made = MessageStore(
        StoreSettings(str(root), commit_log_file_bytes=FILE_BYTES, index_enable=False, sync_flush=False),
        HastyDisk(),
        lambda: 1_700_000_000_000,
    )
    made.open()
    random = Random(5)
    for _ in range(200):
        body = random.randbytes(random.choice((0, 1, 50, 300, 2000)))
        made.put(InnerMessage("T", random.randrange(QUEUES), body, b"TAGS\x01A"))
    yield made
    made.close()


@contextmanager
def without_accelerator() -> Iterator[None]:
    built, reading.gather = reading.gather, None
    try:
        yield
    finally:
        reading.gather = built


def all_units(store: MessageStore) -> list[bytes]:
    queues = [store.queue("T", number) for number in range(QUEUES)]
    units = [queue.unit(offset) for queue in queues for offset in range(queue.max_offset)]
    return sorted(UNIT.pack(*unit) for unit in units if unit)


damaged = st.builds(
    UNIT.pack,
    st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-10, 14 * FILE_BYTES),
    st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-10, FILE_BYTES),
    st.just(0),
)
counts = st.integers(-2, 40)
sizes = st.integers(-5, 20_000)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), max_count=counts, max_bytes=sizes)
def test_the_same_records_up_to_the_end_of_a_file(
    store: MessageStore, data: st.DataObject, max_count: int, max_bytes: int
) -> None:
    known = all_units(store)
    run = st.integers(0, len(known) - 1).map(lambda at: known[at : at + 12])
    picked = b"".join(data.draw(run | st.lists(st.sampled_from(known), min_size=1, max_size=12)))
    chunks, count, size = store.reader._plain_run(picked, max_count, max_bytes)
    with without_accelerator():
        expected, most, _ = store.reader._plain_run(picked, max_count, max_bytes)
    assert 0 < count <= most
    assert b"".join(chunks) == b"".join(expected)[:size]
    assert len(b"".join(chunks)) == size
    files = [unit[0] // FILE_BYTES for unit in UNIT.iter_unpack(picked)]
    same_file = next((n for n, file in enumerate(files) if file != files[0]), len(files))
    assert count == min(most, same_file)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), max_count=counts, max_bytes=sizes)
def test_a_damaged_unit_ends_the_run(
    store: MessageStore, data: st.DataObject, max_count: int, max_bytes: int
) -> None:
    known = all_units(store)
    units = data.draw(st.lists(st.sampled_from(known) | damaged, min_size=1, max_size=8))
    chunks, count, size = store.reader._plain_run(b"".join(units), max_count, max_bytes)
    records = [store.log.read(position, length) for position, length, _ in map(UNIT.unpack, units[:count])]
    assert b"".join(chunks) == b"".join(records)
    assert len(b"".join(records)) == size
    assert all(records)


@pytest.mark.parametrize("queue_id", range(QUEUES))
def test_a_queue_read_from_end_to_end(store: MessageStore, queue_id: int) -> None:
    queue = store.queue("T", queue_id)
    with without_accelerator():
        expected = whole(store, queue_id)
    assert whole(store, queue_id) == expected
    units = [queue.unit(offset) for offset in range(queue.max_offset)]
    assert len(expected) == sum(unit[1] for unit in units if unit)


def whole(store: MessageStore, queue_id: int) -> bytes:
    queue = store.queue("T", queue_id)
    found, offset = b"", 0
    while offset < queue.max_offset:
        result = store.reader.read(queue, offset, 7)
        assert result.status == reading.FOUND
        assert result.next_offset == offset + result.messages
        found += b"".join(result.chunks)
        offset = result.next_offset
    return found


def test_nonsense_is_refused_or_finds_nothing() -> None:
    unit = UNIT.pack(0, 10, 0)
    assert accel.gather(unit, bytes(100), -1, 100, 1, 1) == (b"", 0)
    assert accel.gather(unit, bytes(100), 0, -1, 1, 1) == (b"", 0)
    assert accel.gather(b"", bytes(100), 0, 100, 1, 1) == (b"", 0)
    assert accel.gather(unit[:-1], bytes(100), 0, 100, 1, 1) == (b"", 0)
    assert accel.gather(unit, bytes(100), 0, 100, 0, 0) == (bytes(10), 1)
    with pytest.raises(TypeError):
        accel.gather("text", bytes(100), 0, 100, 1, 1)
