"""Records that an earlier process wrote: the accelerator looks at them as the Python twin does before they are sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq import accel
from orbitmq.broker.filter.compiler import compile_sql, properties_of
from orbitmq.store import reading
from orbitmq.store.inner_message import InnerMessage
from orbitmq.store.message_store import MessageStore
from orbitmq.store.selection import EVERYTHING, Selection
from orbitmq.store.settings import StoreSettings
from orbitmq.wire.java_hash import string_hash
from tests.support.send_sides import HastyDisk

if accel.gather is None or accel.pick is None:
    pytest.skip("the accelerator is not built", allow_module_level=True)

FILE_BYTES = 16 << 10
MESSAGES = 120
CONDITION = "a > 1"
HOSTS = (bytes(8), bytes(8), bytes(8), bytes(20))


@pytest.fixture(scope="module")
def reopened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    """Two queues in a few files, written by one store and opened by the next."""
    root = tmp_path_factory.mktemp("own")
    store = opened(root)
    random = Random(3)
    for number in range(MESSAGES):
        body = random.randbytes(random.choice((0, 1, 70, 300)))
        text = b"a\x01%d\x02TAGS\x01%b" % (number % 4, b"AB"[number % 2 : number % 2 + 1])
        message = InnerMessage("T", number % 2, body, text, born_host=random.choice(HOSTS))
        store.put(message.index_properties())
    store.close()
    again = opened(root)
    for queue in again.all_queues():
        queue.checked_from = queue.max_offset  # as if the files that recovery looks at lay behind them
    yield again
    again.close()


def opened(root: Path) -> MessageStore:
    made = MessageStore(
        StoreSettings(str(root), commit_log_file_bytes=FILE_BYTES, index_enable=False, sync_flush=False),
        HastyDisk(),
        lambda: 1_700_000_000_000,
    )
    made.open()
    return made


def selections() -> list[Selection]:
    return [
        EVERYTHING,
        Selection({string_hash("A")}),
        Selection(accept=compile_sql(CONDITION), names=properties_of(CONDITION)),
    ]


def drained(store: MessageStore, wanted: Selection, max_count: int) -> list[tuple[int, bytes]]:
    """What a reader gets of both queues, pull by pull."""
    found = []
    for number in range(2):
        queue = store.queue("T", number)
        offset = 0
        while offset < queue.max_offset:
            result = store.reader.read(queue, offset, max_count, wanted)
            assert result.next_offset > offset
            found.append((number, b"".join(result.chunks)))
            offset = result.next_offset
    return [(number, b"".join(part for of, part in found if of == number)) for number in range(2)]


def drained_by_the_twin(store: MessageStore, wanted: Selection, max_count: int) -> list[tuple[int, bytes]]:
    built = reading.gather, reading.pick
    reading.gather = reading.pick = None
    try:
        return drained(store, wanted, max_count)
    finally:
        reading.gather, reading.pick = built


@settings(max_examples=150, deadline=None)
@given(
    damage=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=12)), max_size=3),
    max_count=st.integers(1, 40),
    which=st.integers(0, 2),
)
def test_damaged_records_are_left_out_alike(
    reopened: MessageStore, damage: list[tuple[float, bytes]], max_count: int, which: int
) -> None:
    log = reopened.log
    kept = []
    for place, data in damage:
        offset = min(int(place * log.position), log.position - len(data))
        room = min(len(data), FILE_BYTES - offset % FILE_BYTES)
        kept.append((offset, log.series.read(offset, room)))
        log.series.write(offset, data[:room])
    try:
        wanted, same = selections()[which], selections()[which]
        assert drained(reopened, wanted, max_count) == drained_by_the_twin(reopened, same, max_count)
    finally:
        for offset, data in reversed(kept):
            log.series.write(offset, data)


def test_sound_records_need_no_twin(reopened: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do those with hosts of the longer form."""

    def refuse(*_: object) -> None:
        raise AssertionError("the slow way was taken")

    monkeypatch.setattr(reading.QueueReader, "_picked", refuse)
    assert sum(len(data) for _, data in drained(reopened, EVERYTHING, 32)) > 0


@pytest.mark.parametrize(
    ("part", "queue_id", "offset"),
    [(b"\x01U", 0, 0), (b"\x02TT", 0, 0), (b"\x01T", 1, 0), (b"\x01T", 0, 1), (b"", 0, 1)],
)
def test_records_of_another_queue_are_not_taken(
    reopened: MessageStore, part: bytes, queue_id: int, offset: int
) -> None:
    queue = reopened.queue("T", 0)
    units = queue.read_units(0, 5)
    assert reopened.reader._plain_run(units, 5, 1 << 20, (b"\x01T", 0, 0, 5))[1] == 5
    assert reopened.reader._plain_run(units, 5, 1 << 20, (part, queue_id, offset, 5))[1] == 0
    assert reopened.reader._plain_run(units, 5, 1 << 20, (part, queue_id, offset, 0))[1] == 5


def test_nonsense_is_refused() -> None:
    assert accel.gather is not None
    for own in (b"\x01T", [b"\x01T", 0, 0, 1], (b"\x01T", 0, 0), ("\x01T", "0", 0, 1)):
        with pytest.raises(TypeError):
            accel.gather(bytes(20), bytes(100), 0, 100, 1, 1, own)
