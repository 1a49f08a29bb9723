"""The options of the source `orbitmq`, named like those of Spark's Kafka source, checked before anything is read.

Spark hands options over in lower case, so names are compared without case; errors use the names below.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from orbitmq.client.errors import OrbitMQError
from orbitmq.spark.errors import BadOption
from orbitmq.spark.offsets import (
    EARLIEST,
    FIRST,
    LATEST,
    Named,
    Place,
    Where,
    parse_assignment,
    parse_numbers,
)
from orbitmq.spark.schema import parse_columns
from orbitmq.wire.errors import WireError
from orbitmq.wire.subscription import split_tags
from orbitmq.wire.topics import validate_group

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"

READ_OPTIONS: Final[dict[str, str]] = {
    "namesrv": "name servers, HOST:PORT, several separated by ';'",
    "subscribe": "topics, separated by commas",
    "subscribePattern": "a regular expression for whole topic names",
    "assign": 'queues: {"topic": [0, 1]} or {"topic": {"broker": [0]}}',
    "startingOffsets": "earliest, latest, committed, or numbers as JSON",
    "endingOffsets": "latest, or numbers as JSON; batch only",
    "startingTimestamp": "ms since 1970 or ISO 8601 with a zone: the first message stored then or later",
    "endingTimestamp": "the same, as the end; batch only",
    "startingOffsetsByTimestamp": "a time in ms for each queue, as JSON",
    "endingOffsetsByTimestamp": "the same, as the end; batch only",
    "startingOffsetsByTimestampStrategy": "latest or error: what to do where nothing is that new",
    "failOnDataLoss": "false: warn instead of failing when messages are gone",
    "cores": "how many tasks to plan for; those of the driver's machine, which on a cluster are not all",
    "minPartitions": "cut the work into at least so many tasks",
    "maxRecordsPerPartition": "no task reads more messages than this",
    "maxOffsetsPerTrigger": "messages per micro-batch, at most",
    "minOffsetsPerTrigger": "wait until there are so many new messages",
    "maxTriggerDelay": "but not longer than this: 90s, 15m, 1h",
    "maxBytesPerTrigger": "bytes per micro-batch, about, at most",
    "tags": "only messages with one of these tags: A || B",
    "columns": "the columns to read, separated by commas",
    "group": "a consumer group under which progress is reported to the brokers",
    "pageBytes": "bytes asked for by one pull",
    "requestTimeoutMs": "how long to wait for one answer",
    "retryTimeoutMs": "how long a broker may be away before the read fails",
    "path": "the topics, when given to load()",
}

BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class ReadOptions:
    """What to read and how. Values are checked; names of topics and queues are not, they need the cluster."""

    namesrv: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[Named, ...] = ()
    start: Place = EARLIEST
    end: Place = LATEST
    fail_when_too_new: bool = False
    fail_on_data_loss: bool = True
    cores: int | None = None
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_rows_per_trigger: int | None = None
    min_rows_per_trigger: int | None = None
    max_trigger_delay_s: float = 900.0
    max_bytes_per_trigger: int | None = None
    tags: str = "*"
    columns: tuple[str, ...] = ()
    group: str | None = None
    page_bytes: int = 2 << 20
    request_timeout_s: float = 10.0
    retry_timeout_s: float = 30.0


class OptionReader:
    """Typed access to options that remembers what they are called."""

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        names = {name.lower(): name for name in known}
        for name in self._given:
            # Names with a dot are settings of Spark that users pass this way.
            if name not in names and "." not in name and not name.startswith("__"):
                close = difflib.get_close_matches(name, names, n=1)
                hint = (
                    f"did you mean {names[close[0]]}?" if close else f"known are {', '.join(names.values())}"
                )
                raise BadOption(name, "there is no such option", hint=hint)

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        return value.strip() if value is not None else None

    def flag(self, name: str, default: bool) -> bool:
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise BadOption(name, f"{value!r} is neither true nor false")
        return value == "true"

    def number(self, name: str, default: int | None = None, *, smallest: int = 1) -> int | None:
        value = self.text(name)
        if value is None:
            return default
        if not re.fullmatch(r"-?\d{1,18}", value) or int(value) < smallest:
            raise BadOption(name, f"{value!r} is no whole number from {smallest} on")
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        """A length of time: `90s`, `15m`, `500ms`; a bare number is milliseconds, as in Kafka's source."""
        value = self.text(name)
        if value is None:
            return default
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?", value)
        if match is None:
            raise BadOption(name, f"{value!r} is no length of time", hint="write 500ms, 90s, 15m or 1h")
        return float(match[1]) * _UNITS_S[match[2] or "ms"]

    def request_timeout_s(self, default: float) -> float:
        seconds = self.seconds("requestTimeoutMs", default)
        if not seconds:
            raise BadOption(
                "requestTimeoutMs", "no answer comes in no time", hint="write 10s, or leave it out"
            )
        return seconds


def parse_read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    options = OptionReader(given, READ_OPTIONS)
    if streaming:
        for name in BATCH_ONLY:
            if options.text(name) is not None:
                raise BadOption(
                    name, "a stream has no end", hint="use it with spark.read, or Trigger.AvailableNow"
                )
    topics, pattern, assigned = _subscription(options)
    start, end = places(options, streaming=streaming)
    group = options.text("group") or None
    if group and (reason := validate_group(group)):
        raise BadOption("group", reason)
    if start.where is Where.COMMITTED and not group:
        raise BadOption("startingOffsets", "committed needs a group", hint="set the option group")
    least, most = options.number("minOffsetsPerTrigger"), options.number("maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise BadOption("minOffsetsPerTrigger", f"{least} is more than maxOffsetsPerTrigger, {most}")
    return ReadOptions(
        namesrv=namesrv_option(options),
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        start=start,
        end=end,
        fail_when_too_new=fails_when_too_new(options),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        cores=options.number("cores"),
        min_partitions=options.number("minPartitions"),
        max_records_per_partition=options.number("maxRecordsPerPartition"),
        max_rows_per_trigger=most,
        min_rows_per_trigger=least,
        max_trigger_delay_s=options.seconds("maxTriggerDelay", 900.0),
        max_bytes_per_trigger=options.number("maxBytesPerTrigger"),
        tags=_tags(options),
        columns=parse_columns(options.text("columns") or ""),
        group=group,
        page_bytes=options.number("pageBytes", ReadOptions.page_bytes, smallest=4096) or 0,
        request_timeout_s=options.request_timeout_s(ReadOptions.request_timeout_s),
        retry_timeout_s=options.seconds("retryTimeoutMs", ReadOptions.retry_timeout_s),
    )


def namesrv_option(options: OptionReader) -> str:
    """The name servers: of the option, of the environment, or of this machine."""
    from orbitmq.client.cluster import parse_namesrv

    text = options.text("namesrv") or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV
    try:
        parse_namesrv(text)
    except OrbitMQError as error:
        raise BadOption("namesrv", str(error), hint="write HOST:PORT, several separated by ';'") from error
    return text


def _subscription(options: OptionReader) -> tuple[tuple[str, ...], str | None, tuple[Named, ...]]:
    """Exactly one of the three ways to say what is read."""
    given = [name for name in ("subscribe", "subscribePattern", "assign", "path") if options.text(name)]
    if len(given) != 1:
        problem = f"{given[0]} is given as well" if given else "nothing says which topics to read"
        raise BadOption(
            given[1] if given else "subscribe",
            problem,
            hint="give one of subscribe, subscribePattern, assign",
        )
    text = options.text(given[0]) or ""
    if given[0] == "assign":
        return (), None, parse_assignment("assign", text)
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise BadOption("subscribePattern", f"{text!r} is no regular expression: {error}") from error
        return (), text, ()
    topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not topics:
        raise BadOption(given[0], f"{text!r} names no topic")
    return topics, None, ()


def places(options: OptionReader, *, streaming: bool) -> tuple[Place, Place]:
    """Where a read begins and where it ends."""
    start, end = _starting_place(options, streaming), _ending_place(options)
    if start.where is end.where is Where.TIME and end.time_ms < start.time_ms:
        raise BadOption(
            end.option, f"it lies before {start.option}, so nothing would be read", hint="exchange the two"
        )
    return start, end


def _starting_place(options: OptionReader, streaming: bool) -> Place:
    """As in Kafka's source, a time for all queues comes before times per queue, and those before offsets."""
    if (moment := options.text("startingTimestamp")) is not None:
        return Place(Where.TIME, time_ms=moment_ms("startingTimestamp", moment), option="startingTimestamp")
    name = "startingOffsetsByTimestamp"
    if (times := options.text(name)) is not None:
        return Place(Where.TIMES, parse_numbers(name, times, 0), option=name)
    text = options.text("startingOffsets")
    if text is None:
        return Place(Where.LATEST if streaming else Where.EARLIEST, option="startingOffsets")
    word = text.lower()
    if word == "latest" and not streaming:
        raise BadOption(
            "startingOffsets", "a batch that starts at the end reads nothing", hint="use earliest"
        )
    if word in ("earliest", "latest", "committed"):
        return Place(Where(word), option="startingOffsets")
    numbers = parse_numbers("startingOffsets", text, FIRST)
    return Place(Where.OFFSETS, numbers, option="startingOffsets")


def _ending_place(options: OptionReader) -> Place:
    if (moment := options.text("endingTimestamp")) is not None:
        return Place(Where.TIME, time_ms=moment_ms("endingTimestamp", moment), option="endingTimestamp")
    name = "endingOffsetsByTimestamp"
    if (times := options.text(name)) is not None:
        return Place(Where.TIMES, parse_numbers(name, times, 0), option=name)
    text = options.text("endingOffsets") or "latest"
    if text.lower() == "latest":
        return Place(Where.LATEST, option="endingOffsets")
    if text.lower() == "earliest":
        raise BadOption(
            "endingOffsets", "a batch that ends at the first message reads nothing", hint="use latest"
        )
    numbers = parse_numbers("endingOffsets", text, FIRST)
    if FIRST in numbers.values():
        raise BadOption("endingOffsets", "-2, the first message, is no end", hint="use -1 for the end")
    return Place(Where.OFFSETS, numbers, option="endingOffsets")


def moment_ms(option: str, text: str) -> int:
    """Milliseconds since 1970, or a moment as ISO 8601 writes it, with its zone."""
    if re.fullmatch(r"\d{1,15}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise BadOption(
            option,
            f"{text!r} is no moment",
            hint="write ms since 1970, or 2025-01-31T12:00:00+00:00 with a zone",
        )
    return round(moment.timestamp() * 1000)


def fails_when_too_new(options: OptionReader) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    value = (options.text(name) or "latest").lower()
    if value not in ("latest", "error"):
        raise BadOption(name, f"{value!r} is neither latest nor error")
    return value == "error"


def _tags(options: OptionReader) -> str:
    text = options.text("tags") or "*"
    try:
        split_tags(text)
    except WireError as error:
        raise BadOption("tags", str(error)) from error
    return text
