"""Filtered pulls by the accelerator and by the Python twin: the same records, the same next offset."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq import accel
from orbitmq.broker.filter.compiler import compile_sql, properties_of
from orbitmq.store import reading
from orbitmq.store.consume_queue import UNIT
from orbitmq.store.inner_message import InnerMessage
from orbitmq.store.message_store import MessageStore
from orbitmq.store.selection import MOST_VERDICTS, Selection
from orbitmq.store.settings import StoreSettings
from orbitmq.wire.java_hash import string_hash
from tests.support.send_sides import HastyDisk

if accel.pick is None:
    pytest.skip("the accelerator is not built", allow_module_level=True)

MESSAGES = 300
PAIRS = [
    *(
        b"a\x011",
        b"a\x013",
        b"a\x0177",
        b"a\x01x",
        b"a\x01",
        b"a",
        b"aa\x013",
        b"region\x01eu",
        b"region\x01us",
    ),
    *(
        b"region\x01",
        b"a\x013\x01region\x01eu",
        b"TAGS\x01A",
        b"TAGS\x01B",
        b"KEYS\x01k",
        b"",
        b"UNIQ_KEY\x01u1",
    ),
]
CONDITIONS = [
    *("a > 2", "a > 2 AND region = 'eu'", "region IS NULL", "a BETWEEN 0 AND 5 OR region IN ('us')", "TRUE"),
    *("NOT (region LIKE 'e%')", "a IS NOT NULL AND aa = 3", "region CONTAINS 'u'", "region", "a = region"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    """Messages with all kinds of property texts, in a dozen log files, some born at IPv6 hosts."""
    root = tmp_path_factory.mktemp("pick")
    made = MessageStore(
        StoreSettings(str(root), commit_log_file_bytes=8192, index_enable=False, sync_flush=False),
        HastyDisk(),
        lambda: 1_700_000_000_000,
    )
    made.open()
    random = Random(11)
    for _ in range(MESSAGES):
        text = b"\x02".join(random.choices(PAIRS, k=random.randrange(5)))
        host = bytes(20) if random.random() < 0.02 else bytes(8)
        body = random.randbytes(random.choice((1, 50, 300)))
        made.put(InnerMessage("T", 0, body, text, born_host=host).index_properties())
    yield made
    made.close()


def selections() -> st.SearchStrategy[Selection]:
    tags = st.sets(st.sampled_from(["A", "B", "C"])).map(
        lambda chosen: Selection({string_hash(t) for t in chosen})
    )
    conditions = st.sampled_from(CONDITIONS).map(
        lambda text: Selection(accept=compile_sql(text), names=properties_of(text))
    )
    return tags | conditions


@settings(max_examples=300, deadline=None)
@given(st.data(), st.integers(0, MESSAGES - 1), st.integers(1, 40), st.sampled_from([1, 700, 5000, 1 << 20]))
def test_the_same_records_as_the_twin(
    store: MessageStore, data: st.DataObject, offset: int, count: int, page_bytes: int
) -> None:
    wanted = data.draw(selections())
    queue = store.queue("T", 0)
    built, reading.pick = reading.pick, None
    try:
        plain = store.reader.read(queue, offset, count, wanted, page_bytes)
    finally:
        reading.pick = built
    quick = store.reader.read(queue, offset, count, wanted, page_bytes)
    again = store.reader.read(queue, offset, count, wanted, page_bytes)
    records, expected = b"".join(quick.chunks), b"".join(plain.chunks)
    assert again._replace(chunks=[b"".join(again.chunks)]) == quick._replace(chunks=[records]), "remembered"
    assert quick.size == len(records)
    if quick.next_offset == plain.next_offset:
        assert (quick.status, quick.messages, records) == (plain.status, plain.messages, expected)
        return
    # A record in the next log file, or of a rare form, ends a pull that has found something.
    assert quick.messages and offset < quick.next_offset < plain.next_offset
    assert expected.startswith(records)
    rest = store.reader.read(queue, quick.next_offset, count, wanted, page_bytes)
    assert rest.next_offset > quick.next_offset


@given(st.lists(st.sampled_from(PAIRS), max_size=6), st.sampled_from(CONDITIONS))
def test_equal_pairs_have_equal_verdicts(pairs: list[bytes], text: str) -> None:
    """The key that verdicts are kept by holds all that a condition looks at."""
    accept, names = compile_sql(text), tuple(name.encode() for name in properties_of(text))
    counted = [pair for pair in pairs if pair.partition(b"\x01")[0] in names and b"\x01" in pair]
    assert accept(record_with(b"\x02".join(pairs))) == accept(record_with(b"\x02".join(counted)))


def record_with(text: bytes) -> bytes:
    head = bytearray(88)
    head[4:8] = (0xDAA320A7).to_bytes(4, "big")
    return bytes(head) + b"\x01T" + len(text).to_bytes(2, "big") + text


def test_damaged_units_are_left_to_the_twin(store: MessageStore) -> None:
    assert accel.pick is not None
    segment = store.log.series.map(0)
    for unit in (
        UNIT.pack(-5, 100, 0),
        UNIT.pack(0, -1, 0),
        UNIT.pack(8000, 1 << 30, 0),
        UNIT.pack(1 << 62, 9, 0),
    ):
        found = accel.pick(unit, 0, segment, 0, store.log.position, 9, 999, 0, 0, None, None, {})
        assert found == (b"", 0, 0, 2, None)
    with pytest.raises(ValueError, match="bytes"):
        accel.pick(UNIT.pack(0, 1, 0), 0, segment, 0, 1, 9, 999, 0, 0, None, ("text",), {})  # type: ignore[arg-type]


def test_values_that_never_repeat_are_not_remembered_for_ever() -> None:
    wanted = Selection(accept=lambda record: True, names=["a"])
    for number in range(20 * MOST_VERDICTS):
        wanted.remember(b"a\x01%d\x02" % number, True)
        wanted.count(1)
    assert len(wanted.verdicts) <= MOST_VERDICTS
    assert not wanted.is_quick
