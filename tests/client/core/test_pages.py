"""Cutting pages into records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.client.core.pages import cut
from orbitmq.client.errors import OrbitMQError
from orbitmq.wire.message import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, decode_records, encode_record

RECORDS = st.builds(
    encode_record,
    topic=st.text("abc", min_size=1, max_size=9),
    body=st.binary(max_size=40),
    properties=st.binary(max_size=30),
    queue_offset=st.integers(0, 2**40),
    born_host=st.sampled_from(["1.2.3.4:5", "[::1]:7"]),
    store_host=st.sampled_from(["1.2.3.4:5", "[::1]:7"]),
    magic=st.sampled_from([MESSAGE_MAGIC, MESSAGE_MAGIC_V2]),
)


@given(st.lists(RECORDS, max_size=6))
def test_records_are_where_the_decoder_finds_them(records: list[bytes]) -> None:
    buf = b"".join(records)
    page = cut(buf)
    assert page.sizes == [len(record) for record in records]
    assert page.starts == [sum(page.sizes[:index]) for index in range(len(records))]
    assert page.offsets == [message.queue_offset for message in decode_records(buf)]


@given(st.lists(RECORDS, min_size=1, max_size=3), st.data())
def test_a_page_that_is_cut_off_is_refused(records: list[bytes], data: st.DataObject) -> None:
    buf = b"".join(records)
    short = buf[: data.draw(st.integers(len(buf) - len(records[-1]) + 1, len(buf) - 1))]
    with pytest.raises(OrbitMQError, match="no readable message at byte"):
        cut(short)


@given(RECORDS, st.integers(0, 87), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_stays_within_the_page(record: bytes, at: int, value: int) -> None:
    changed = record[:at] + bytes([value]) + record[at + 1 :]
    try:
        page = cut(changed)
    except OrbitMQError:
        return
    assert page.sizes == [len(record)]
