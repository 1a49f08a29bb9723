"""Places in queues: as people write them in options, and as Spark keeps them in a checkpoint.

{"orders": {"broker-a": {"0": 120, "1": -1}}}       -2 is the first message, -1 the end
{"orders": {"0": 120, "1": -1}}                     where the topic lives on one broker only
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from orbitmq.spark.errors import BadOption, SourceError
from orbitmq.wire.fastjson import MessageQueue

FIRST: Final = -2
END: Final = -1

Offsets = dict[MessageQueue, int]

_BEGIN: Final = "@begin"
"""Beside the topics, none of which can have this name: where the stream began."""

_EXAMPLE: Final = 'write {"topic": {"broker": {"queue": number}}}'


class Where(Enum):
    """Kinds of places at which a read can begin or end."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"
    """Where the group stands; the first message where it does not stand anywhere."""
    OFFSETS = "offsets"
    TIME = "time"
    TIMES = "times"


class Named(NamedTuple):
    """A queue as an option names it. `broker` is None where the option leaves it out."""

    topic: str
    broker: str | None
    queue_id: int


@dataclass(frozen=True)
class Place:
    """Where a read begins or ends. `numbers` are offsets or times (ms) per queue, `time_ms` one time for all."""

    where: Where
    numbers: Mapping[Named, int] = field(default_factory=dict)
    time_ms: int = 0
    option: str = ""
    """The option this came from, for errors."""


EARLIEST: Final = Place(Where.EARLIEST)
LATEST: Final = Place(Where.LATEST)


def parse_table(option: str, text: str) -> Any:
    try:
        table = json.loads(text)
    except ValueError as error:
        raise BadOption(option, f"this is not JSON ({error}): {text[:200]}", hint=_EXAMPLE) from error
    if not isinstance(table, dict) or not table:
        raise BadOption(option, f"a JSON object of topics is expected, not {text[:200]}", hint=_EXAMPLE)
    return table


def parse_numbers(option: str, text: str, smallest: int) -> dict[Named, int]:
    """A number for each queue."""
    numbers: dict[Named, int] = {}
    for topic, entries in parse_table(option, text).items():
        if not isinstance(entries, dict) or not entries:
            raise BadOption(option, f"topic {topic!r} needs an object of queues", hint=_EXAMPLE)
        for key, value in entries.items():
            if isinstance(value, dict):
                for queue, number in value.items():
                    name = Named(topic, key, _queue_id(option, queue))
                    numbers[name] = _number(option, name, number, smallest)
            else:
                name = Named(topic, None, _queue_id(option, key))
                numbers[name] = _number(option, name, value, smallest)
    return numbers


def parse_assignment(option: str, text: str) -> tuple[Named, ...]:
    """`{"topic": [0, 1]}`: these queues on every broker; `{"topic": {"broker-a": [0]}}`: on this one."""
    hint = 'write {"topic": [0, 1]} or {"topic": {"broker": [0, 1]}}'
    named: list[Named] = []
    for topic, entries in parse_table(option, text).items():
        groups = entries.items() if isinstance(entries, dict) else ((None, entries),)
        for broker, queues in groups:
            if not isinstance(queues, list) or not queues:
                raise BadOption(option, f"topic {topic!r} needs a list of queue numbers", hint=hint)
            named += [Named(topic, broker, _queue_id(option, queue)) for queue in queues]
    return tuple(dict.fromkeys(named))


def resolve(place: Place, queues: Iterable[MessageQueue]) -> Offsets:
    """The number that belongs to each queue; an error names queues without one, and numbers without a queue."""
    known = list(queues)
    brokers: dict[str, set[str]] = {}
    for queue in known:
        brokers.setdefault(queue.topic, set()).add(queue.broker_name)
    found: Offsets = {}
    used: set[Named] = set()
    for queue in known:
        exact = Named(queue.topic, queue.broker_name, queue.queue_id)
        short = Named(queue.topic, None, queue.queue_id)
        if exact in place.numbers:
            found[queue] = place.numbers[exact]
            used.add(exact)
        elif short in place.numbers:
            if len(brokers[queue.topic]) > 1:
                names = ", ".join(sorted(brokers[queue.topic]))
                raise BadOption(
                    place.option,
                    f"topic {queue.topic!r} lives on several brokers ({names}), so each number needs one",
                    hint=_EXAMPLE,
                )
            found[queue] = place.numbers[short]
            used.add(short)
    if missing := [queue for queue in known if queue not in found]:
        raise BadOption(
            place.option,
            f"no number is given for {', '.join(map(describe, missing[:8]))}",
            hint="name every queue that is read; -2 is the first message, -1 the end",
        )
    if unknown := [name for name in place.numbers if name not in used]:
        name = unknown[0]
        raise BadOption(
            place.option,
            f"queue {name.queue_id} of topic {name.topic!r}"
            f"{f' on {name.broker}' if name.broker else ''} is not among the queues read",
            hint="correct the name, or leave it out",
        )
    return found


def nothing_that_new(option: str, queue: MessageQueue, time_ms: int) -> BadOption:
    return BadOption(
        option,
        f"{describe(queue)} has no message stored at {time_ms} ms or later",
        hint="set startingOffsetsByTimestampStrategy to latest to begin at the end there",
    )


def describe(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


def to_json(offsets: Mapping[MessageQueue, int]) -> dict[str, Any]:
    """Nested and in one order, so that equal offsets are equal texts: Spark compares them as texts."""
    table: dict[str, Any] = {}
    for queue in sorted(offsets):
        brokers = table.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return table


def end_to_json(start: Mapping[str, Any], end: Mapping[MessageQueue, int]) -> dict[str, Any]:
    """The end of a micro-batch, from which the start of the first one can be told as well.

    Spark does not write down where a stream began. If its first batch has to be run again it asks anew, and by then
    the queues may end elsewhere, or a broker may be away.
    """
    return {**to_json(end), _BEGIN: start.get(_BEGIN, start)}


def start_of(start: Mapping[str, Any], end: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where the micro-batch with this end starts: what Spark says, or for the first one what its end says."""
    return start if _BEGIN in start else end.get(_BEGIN, start)


def from_json(table: Mapping[str, Any]) -> Offsets:
    """What `to_json` made, as it comes back from a checkpoint."""
    try:
        return {
            MessageQueue(topic, broker, int(queue)): int(offset)
            for topic, brokers in table.items()
            if topic != _BEGIN
            for broker, queues in brokers.items()
            for queue, offset in queues.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise SourceError(
            f"the offsets in the checkpoint are not those of this source: {json.dumps(table)[:200]}",
            hint="use a checkpoint directory that belongs to this query alone",
        ) from error


def _queue_id(option: str, value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or not 0 <= int(text) < 1 << 31:
        raise BadOption(option, f"{value!r} is no queue number", hint=_EXAMPLE)
    return int(text)


def _number(option: str, name: Named, value: object, smallest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value < 1 << 63:
        raise BadOption(
            option,
            f"{value!r} for queue {name.queue_id} of topic {name.topic!r} is no whole number from {smallest} on",
            hint=_EXAMPLE,
        )
    return value
