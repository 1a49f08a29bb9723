"""Cuts what is to be read into tasks: large stretches into several, small ones together into few. No I/O here.

A task in Python costs tens of milliseconds before it reads its first message, so there are about as many as cores,
not one per queue. The same input always gives the same tasks: a batch that is run again reads the same messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from orbitmq.spark.offsets import Offsets
from orbitmq.spark.pull_client import QueueSlice
from orbitmq.wire.fastjson import MessageQueue

SMALLEST_TASK: Final = 50_000
"""Messages; fewer are not worth a second task."""
LARGEST_TASK: Final = 4_000_000

Task = tuple[QueueSlice, ...]


def plan(
    slices: Sequence[QueueSlice],
    *,
    cores: int,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[Task]:
    """Tasks of about equal numbers of messages, each with stretches in the order given."""
    wanted = [piece for piece in slices if piece.end > piece.start]
    total = sum(piece.end - piece.start for piece in wanted)
    if not total:
        return []
    size = min(max(-(-total // max(cores, 1)), SMALLEST_TASK), LARGEST_TASK)
    if min_partitions is not None:
        size = min(size, max(total // min_partitions, 1))
    if max_records is not None:
        size = min(size, max_records)
    tasks: list[Task] = []
    current: list[QueueSlice] = []
    room = size
    for piece in wanted:
        start = piece.start
        while start < piece.end:
            end = min(piece.end, start + room)
            current.append(QueueSlice(piece.queue, start, end))
            room -= end - start
            start = end
            if not room:
                tasks.append(tuple(current))
                current, room = [], size
    if current:
        tasks.append(tuple(current))
    return tasks


def slices_between(start: Offsets, end: Offsets) -> list[QueueSlice]:
    """What lies between two offsets of a stream.

    A queue that only the end knows is new: its place there is where it begins. An end before its start tells that the
    queue was made anew, so it is read from its beginning.
    """
    slices = []
    for queue in sorted(end):
        if queue not in start:
            continue
        begin = start[queue] if end[queue] >= start[queue] else 0
        slices.append(QueueSlice(queue, begin, end[queue]))
    return slices


def limit_rows(start: Offsets, end: Offsets, most: int) -> Offsets:
    """An end at most so many messages behind the start; queues get shares by how much waits in them."""
    waiting = {queue: end[queue] - start[queue] for queue in end if end[queue] > start.get(queue, end[queue])}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    limited = dict(end)
    left = most
    # Smallest first: their whole numbers are rounded up to one, and the largest takes what that costs.
    for queue in sorted(waiting, key=lambda queue: (waiting[queue], queue)):
        share = min(max(waiting[queue] * most // total, 1), waiting[queue], left)
        limited[queue] = start[queue] + share
        left -= share
    for queue in sorted(waiting, key=lambda queue: (-waiting[queue], queue)):
        more = min(left, end[queue] - limited[queue])
        limited[queue] += more
        left -= more
    return limited


def limit_bytes(start: Offsets, end: Offsets, sizes: Mapping[MessageQueue, float], most: int) -> Offsets:
    """The same by bytes, from the mean size of a queue's messages; at least one message."""
    waiting = {queue: end[queue] - start[queue] for queue in end if end[queue] > start.get(queue, end[queue])}
    total = sum(count * sizes.get(queue, 0.0) for queue, count in waiting.items())
    if total <= most:
        return dict(end)
    rows = sum(waiting.values())
    return limit_rows(start, end, max(1, int(rows * most / total)))
