from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.wire.batch import encode_batch, iter_batch
from orbitmq.wire.errors import WireError

EXAMPLE = bytes.fromhex(
    "00000030 00000000 00000000 00000000 00000001 62 00194B455953016B02574149540174727565025441475301746167"
)
EXAMPLE_ENTRY = (0, b"b", b"KEYS\x01k\x02WAIT\x01true\x02TAGS\x01tag")

entries = st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=60), st.binary(max_size=40))
batches = st.lists(entries, max_size=6)


def test_the_reference_batch() -> None:
    assert encode_batch([EXAMPLE_ENTRY]) == EXAMPLE
    assert list(iter_batch(EXAMPLE + EXAMPLE)) == [EXAMPLE_ENTRY, EXAMPLE_ENTRY]


@given(batches)
def test_round_trip(batch: list[tuple[int, bytes, bytes]]) -> None:
    assert list(iter_batch(encode_batch(batch))) == batch


@given(st.binary(max_size=120))
def test_garbage_is_refused_cleanly(body: bytes) -> None:
    try:
        entries = list(iter_batch(body))
    except WireError:
        return
    assert encode_batch(entries)[:4] == body[:4]


@given(batches, st.data())
def test_damage_never_reads_outside(batch: list[tuple[int, bytes, bytes]], data: st.DataObject) -> None:
    body = bytearray(encode_batch(batch))
    for _ in range(data.draw(st.integers(0, 4)) if body else 0):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = list(iter_batch(bytes(body)))
    except WireError:
        return
    assert len(encode_batch(found)) == len(body)


@given(batches.filter(bool), st.data())
def test_a_cut_batch_is_refused(batch: list[tuple[int, bytes, bytes]], data: st.DataObject) -> None:
    body = encode_batch(batch)
    whole_entries = {len(encode_batch(batch[:count])) for count in range(len(batch) + 1)}
    cut = data.draw(st.integers(0, len(body)).filter(lambda size: size not in whole_entries))
    with pytest.raises(WireError, match="of the batch"):
        list(iter_batch(body[:cut]))


@pytest.mark.parametrize("entry", [(0, b"x", bytes(32768)), (1 << 31, b"x", b"")])
def test_what_does_not_fit_is_refused(entry: tuple[int, bytes, bytes]) -> None:
    with pytest.raises(WireError, match="message 0 of the batch"):
        encode_batch([entry])
