from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.wire.errors import FrameError
from orbitmq.wire.frame import MAX_FRAME_BYTES, FrameReader


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


CONTENTS = st.lists(st.binary(min_size=4, max_size=200), max_size=20)


@given(CONTENTS, st.data())
def test_any_cutting_of_the_stream_gives_the_same_frames(contents: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(framed, contents))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    reader = FrameReader()
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += reader.feed(stream[start:end])
    assert found == contents
    assert reader.pending_bytes == 0


def test_byte_by_byte() -> None:
    reader = FrameReader()
    stream = framed(b"abcd") + framed(b"efghijk")
    found = [frame for index in range(len(stream)) for frame in reader.feed(stream[index : index + 1])]
    assert found == [b"abcd", b"efghijk"]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_taken_and_frames_are_bytes(kind: type) -> None:
    frames = FrameReader().feed(kind(framed(b"abcd")))
    assert frames == [b"abcd"]
    assert type(frames[0]) is bytes


def test_the_largest_frame_counts_its_length_field() -> None:
    largest = bytes(MAX_FRAME_BYTES - 4)
    assert FrameReader().feed(framed(largest)) == [largest]
    with pytest.raises(FrameError, match="above the limit"):
        FrameReader().feed((MAX_FRAME_BYTES - 3).to_bytes(4, "big"))


@pytest.mark.parametrize("length", [0, 1, 3, 2**31, 2**32 - 1])
def test_impossible_lengths_are_refused_at_once(length: int) -> None:
    reader = FrameReader()
    with pytest.raises(FrameError, match="frame length"):
        reader.feed(length.to_bytes(4, "big"))
    assert reader.pending_bytes == 0


@pytest.mark.parametrize(
    ("start", "word"),
    [(b"\x16\x03\x01\x02", "TLS"), (b"GET / HTTP/1.1", "HTTP"), (b"PRI * HTTP/2.0", "gRPC")],
)
def test_other_protocols_are_named(start: bytes, word: str) -> None:
    with pytest.raises(FrameError, match=word):
        FrameReader().feed(start)


def test_good_frames_before_garbage_are_not_lost() -> None:
    with pytest.raises(FrameError) as caught:
        FrameReader().feed(framed(b"good") + b"\xff\xff\xff\xff")
    assert caught.value.frames == [b"good"]


def test_a_large_frame_in_many_pieces_is_held_once() -> None:
    reader = FrameReader(max_frame_bytes=1 << 20)
    content = bytes(range(256)) * 2048
    stream = framed(content)
    for start in range(0, len(stream) - 1000, 1000):
        assert reader.feed(stream[start : start + 1000]) == []
        assert reader.pending_bytes <= len(stream)
    assert reader.feed(stream[start + 1000 :]) == [content]


@given(st.binary(max_size=300))
def test_garbage_never_raises_anything_else_and_never_grows(data: bytes) -> None:
    reader = FrameReader(max_frame_bytes=4096)
    try:
        frames = reader.feed(data)
    except FrameError as error:
        frames = error.frames
    assert sum(map(len, frames)) + reader.pending_bytes <= len(data)
