"""The accelerator by itself: checksums, what it refuses, and that it keeps nothing."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest

from orbitmq import accel
from tests.accel import direct

if accel.stage_frames is None:
    pytest.skip("the accelerator is not built", allow_module_level=True)

STATM = Path("/proc/self/statm")
PAGE_BYTES = 4096


def stage(data: bytes, **changes: Any) -> Any:
    given = {"topics": direct.topics_of(), "settings": direct.settings_of(), **changes}
    return direct.stage(accel.stage_frames, data, **given)


def test_checksums_of_all_lengths() -> None:
    """Long bodies are folded, short ones and the last bytes go by tables."""
    random = Random(1)
    for size in [*range(200), *range(240, 280), 1000, 4096, 65_537, 1 << 20]:
        body = random.randbytes(size)
        records = stage(direct.framed(*direct.single(1, body)))[2]
        assert int.from_bytes(records[8:12], "big") == crc32(body) & 0x7FFFFFFF, size


@pytest.mark.parametrize(
    "changes",
    [
        {"topics": {b"Topic0": "no tuple"}},
        {"topics": {b"Topic0": ()}},
        {"topics": {b"Topic0": ([], b"\6Topic0", 1, "Topic0")}},
        {"topics": {b"Topic0": ((), "Topic0", 1, "Topic0")}},
        {"topics": {b"Topic0": ((), b"", 1, "Topic0")}},
        {"topics": {b"Topic0": ((), b"\6Topic0", None, "Topic0")}},
        {"topics": {b"Topic0": (("no queue",) * 4, b"\6Topic0", 1, "Topic0")}},
        {"topics": {b"Topic0": ((direct.Queue("x"),) * 4, b"\6Topic0", 1, "Topic0")}},  # type: ignore[arg-type]
        {"topics": {b"Topic0": ((direct.Queue(1 << 70),) * 4, b"\6Topic0", 1, "Topic0")}},
        {"topics": []},
        {"settings": ()},
        {"settings": ("x", *direct.settings_of()[1:])},
        {"settings": (*direct.settings_of()[:-1], "x")},
        {"settings": direct.settings_of(store_host=b"short")},
        {"born_host": b"short"},
        {"position": -1},
        {"room_end": -1},
        {"start": -1},
        {"end": 1 << 20},
        {"start": 5, "end": 4},
    ],
)
def test_wrong_arguments_are_errors_and_nothing_else(changes: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError, OverflowError)):
        stage(direct.framed(*direct.single(1, b"x")), **changes)


def test_a_topic_that_is_not_known_is_left_alone() -> None:
    assert stage(direct.framed(*direct.single(1, b"x", "Other"))) is None
    nobody = {b"Topic0": ((None,) * 4, b"\6Topic0", 1, "Topic0")}
    assert stage(direct.framed(*direct.single(1, b"x")), topics=nobody) is None
    assert stage(b"") is None
    assert stage(b"\0\0\0") is None


def test_nothing_is_kept() -> None:
    topics, settings = direct.topics_of(), direct.settings_of()
    taken = b"".join(direct.framed(*direct.single(number, b"body")) for number in range(3))
    taken += direct.framed(*direct.batch(5, [b"x"] * 20))
    refused = direct.framed(*direct.single(1, b"x", "Other"))
    # The last message of the batch is not plain: what was made of the others is taken back.
    header, body = direct.batch(5, [b"x"] * 20)
    half = taken + direct.framed(header, body[:-1] + b"\xff\xff")
    broken: dict[bytes, Any] = {**topics, b"Topic0": (("no queue",) * 4, b"\6Topic0", 1, "Topic0")}
    watched = [topics, settings, *settings[2:], *topics.values(), *topics[b"Topic0"][0]]
    watched += [info[3] for info in topics.values()]

    def calls(count: int) -> None:
        for _ in range(count):
            direct.stage(accel.stage_frames, taken, topics=topics, settings=settings)
            direct.stage(accel.stage_frames, refused, topics=topics, settings=settings)
            direct.stage(accel.stage_frames, half, topics=topics, settings=settings)
            try:
                direct.stage(accel.stage_frames, taken, topics=broken, settings=settings)
            except AttributeError:
                continue

    calls(1000)
    gc.collect()
    counts, memory = [sys.getrefcount(item) for item in watched], resident_bytes()
    calls(25_000)
    gc.collect()
    assert [sys.getrefcount(item) for item in watched] == counts
    assert resident_bytes() - memory < 2_000_000


def test_gather_and_put_index_keep_nothing() -> None:
    assert accel.gather is not None
    assert accel.put_index is not None
    area, column = bytearray(2000), bytes(80)
    units = (0).to_bytes(8, "big") + (1500).to_bytes(4, "big") + bytes(8)

    def calls(count: int) -> None:
        for _ in range(count):
            accel.gather(units, area, 0, 2000, 5, 5)  # type: ignore[misc]
            accel.put_index(area, 80, 10, 1, 0, column, column, column)  # type: ignore[misc]
            with pytest.raises(ValueError, match="fit"):
                accel.put_index(area, 80, 10, 0, 0, column, column, column)  # type: ignore[misc]

    calls(500)
    counts, memory = [sys.getrefcount(item) for item in (area, column, units)], resident_bytes()
    calls(8000)
    assert [sys.getrefcount(item) for item in (area, column, units)] == counts
    assert resident_bytes() - memory < 2_000_000
    area.append(0)  # a buffer still held would forbid this


def resident_bytes() -> int:
    """0 where the system does not tell: the reference counts have to do."""
    return int(STATM.read_text().split()[1]) * PAGE_BYTES if STATM.exists() else 0
