"""Which topics an option means. No I/O here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from orbitmq.spark.options import ReadOptions
from orbitmq.wire.topics import is_system_topic

SINK_TOPIC: Final = "ORBITMQ_SPARK_SINK"
"""Where our sink keeps its decisions. A stream that copied it would have something new to copy after every batch."""


def is_internal(topic: str) -> bool:
    """Whether nobody means this topic who does not spell out its name."""
    return is_system_topic(topic) or topic == SINK_TOPIC


def matching(topics: Iterable[str], pattern: str) -> list[str]:
    """Whole names; retry and dead-letter topics only where the pattern spells out their `%`."""
    whole = re.compile(pattern)
    return [
        topic
        for topic in topics
        if whole.fullmatch(topic) and not is_internal(topic) and ("%" not in topic or "%" in pattern)
    ]


def is_subscribed(options: ReadOptions, topic: str) -> bool:
    if options.pattern is not None:
        return bool(matching((topic,), options.pattern))
    return topic in options.topics or any(name.topic == topic for name in options.assigned)
