"""A queue's units are the same wherever they wait: in memory, in its files, or half in both."""

from __future__ import annotations

import tempfile

from hypothesis import given
from hypothesis import strategies as st

from orbitmq.store.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue
from orbitmq.store.disk import Disk
from orbitmq.store.segment import DescriptorCache

UNITS_PER_FILE = 16

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 9)),
        st.tuples(st.just("write_out"), st.just(0)),
        st.tuples(st.just("read"), st.tuples(st.integers(0, 60), st.integers(0, 40))),
    ),
    max_size=40,
)


def unit(number: int) -> bytes:
    return UNIT.pack(number * 100, 100, number)


def fresh_queue(root: str) -> ConsumeQueue:
    disk = Disk()
    return ConsumeQueue(disk, root, "T", 0, UNITS_PER_FILE * UNIT_BYTES, DescriptorCache(disk))


@given(STEPS)
def test_a_read_gets_all_it_asked_for_up_to_the_end_of_the_file(steps: list[tuple[str, object]]) -> None:
    model: list[bytes] = []
    written = 0
    with tempfile.TemporaryDirectory() as root:
        queue = fresh_queue(root)
        for step, argument in steps:
            if step == "append":
                assert isinstance(argument, int)
                new = [unit(len(model) + at) for at in range(argument)]
                model += new
                queue.append(new)
            elif step == "write_out":
                queue.write_out()
                written = len(model)
            else:
                assert isinstance(argument, tuple)
                offset, count = argument
                border = offset - offset % UNITS_PER_FILE + UNITS_PER_FILE
                end = offset + count if offset >= written else min(offset + count, max(border, 0))
                expected = b"".join(model[offset:end])
                got = queue.read_units(offset, count)
                # Units in memory know no border: behind the written ones there may be more, never fewer.
                assert got.startswith(expected)
                assert b"".join(model[offset : offset + count]).startswith(got)
        queue.close()


def test_a_pull_across_written_and_waiting_units_is_not_cut_short() -> None:
    with tempfile.TemporaryDirectory() as root:
        queue = fresh_queue(root)
        queue.append([unit(number) for number in range(5)])
        queue.write_out()
        queue.append([unit(number) for number in range(5, 12)])
        assert queue.read_units(0, 10) == b"".join(unit(number) for number in range(10))
        queue.close()
