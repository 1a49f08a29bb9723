"""Turns what the options say about beginning and end into an offset for each queue."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from orbitmq.spark.brokers import Brokers
from orbitmq.spark.errors import BadOption, DataLost
from orbitmq.spark.offsets import END, FIRST, Offsets, Place, Where, describe, nothing_that_new, resolve
from orbitmq.spark.options import ReadOptions
from orbitmq.spark.places import Bounds, committed, offsets_at
from orbitmq.wire.fastjson import MessageQueue

log = logging.getLogger("orbitmq.spark")


def resolve_place(
    brokers: Brokers, options: ReadOptions, place: Place, bounds: Mapping[MessageQueue, Bounds]
) -> Offsets:
    """The offset of each queue at this place; what lies outside a queue is an error that names the option."""
    if place.where is Where.EARLIEST:
        return {queue: limits.first for queue, limits in bounds.items()}
    if place.where is Where.LATEST:
        return {queue: limits.end for queue, limits in bounds.items()}
    if place.where is Where.COMMITTED:
        return _committed(brokers, options, bounds)
    if place.where is Where.OFFSETS:
        return _numbers(options, place, bounds)
    one_for_all = place.where is Where.TIME
    times = dict.fromkeys(bounds, place.time_ms) if one_for_all else resolve(place, bounds)
    found = offsets_at(brokers, times, bounds)
    if options.fail_when_too_new and place is options.start:
        for queue, offset in found.items():
            if offset >= bounds[queue].end:
                raise nothing_that_new(place.option, queue, times[queue])
    return found


def _committed(brokers: Brokers, options: ReadOptions, bounds: Mapping[MessageQueue, Bounds]) -> Offsets:
    found: Offsets = {}
    for queue, offset in committed(brokers, options.group or "", list(bounds)).items():
        if offset is None:
            found[queue] = bounds[queue].first
        else:
            found[queue] = min(within(options, queue, offset, bounds[queue]), bounds[queue].end)
    return found


def _numbers(options: ReadOptions, place: Place, bounds: Mapping[MessageQueue, Bounds]) -> Offsets:
    found: Offsets = {}
    for queue, number in resolve(place, bounds).items():
        limits = bounds[queue]
        if number == FIRST:
            found[queue] = limits.first
        elif number == END:
            found[queue] = limits.end
        elif number > limits.end or (number < limits.first and place is options.end):
            raise BadOption(
                place.option,
                f"{number} for {describe(queue)} is out of range: the queue has offsets {limits.first} to {limits.end}",
                hint="use -1 for the end",
            )
        elif place is options.start:
            found[queue] = within(options, queue, number, limits, f" (option '{place.option}')")
        else:
            found[queue] = number
    return found


def check_order(options: ReadOptions, start: Offsets, end: Offsets) -> None:
    """An end before the start, where both are numbers, is a mistake and not an empty table."""
    if not options.start.where is options.end.where is Where.OFFSETS:
        return
    for queue in start:
        if end[queue] < start[queue]:
            raise BadOption(
                options.end.option,
                f"{describe(queue)} would end at offset {end[queue]}, before it begins at {start[queue]} "
                f"({options.start.option})",
                hint="exchange the two, or leave one out",
            )


def within(options: ReadOptions, queue: MessageQueue, start: int, limits: Bounds, told_by: str = "") -> int:
    """A place to start at; what was cleaned away before it could be read is an error, or skipped with a warning."""
    if start >= limits.first:
        return start
    why = f"the queue begins at {limits.first} now: older ones were cleaned away{told_by}"
    lost = DataLost(queue.topic, queue.broker_name, queue.queue_id, start, limits.first, why)
    if options.fail_on_data_loss:
        raise lost
    log.warning("going on without: %s", lost)
    return limits.first
