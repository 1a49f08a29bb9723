"""What a write may be told: the options of `df.write.format("orbitmq")`, checked before a row is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from orbitmq.spark.errors import BadOption
from orbitmq.spark.options import OptionReader, namesrv_option
from orbitmq.wire.topics import validate_topic

EXACTLY_ONCE: Final = "exactly-once"
AT_LEAST_ONCE: Final = "at-least-once"
DEFAULT_MAX_BODY_BYTES: Final = 4 * 1024 * 1024
MOST_ALONE: Final = 256
GROUP_PREFIX: Final = "SPARK_SINK_"

WRITE_OPTIONS: Final[dict[str, str]] = {
    "namesrv": "name servers, HOST:PORT, several separated by ';'",
    "topic": "where rows go that name no topic themselves",
    "delivery": "exactly-once (default), or at-least-once, which is faster",
    "txnAppId": "the name under which repeated writes are recognised; a stream's is its query id",
    "txnVersion": "the number of this write: one that is not above the last one written is skipped; batch only",
    "maxInFlight": "messages of a task that wait for their answers at the same time; 256 at most of those sent alone",
    "maxBodyBytes": "longer bodies are refused, naming the row",
    "requestTimeoutMs": "how long to wait for one answer",
    "retryTimeoutMs": "how long a broker may be busy or away before the write fails",
}
# Given to every sink by Spark itself or meant for Spark.
_OF_SPARK: Final = ("path", "paths", "checkpointLocation", "queryName")
_APP_ID = re.compile(r"[A-Za-z0-9_.:\-]{1,100}").fullmatch


@dataclass(frozen=True)
class SinkOptions:
    namesrv: str
    topic: str | None = None
    """For rows without a topic of their own."""
    delivery: str = EXACTLY_ONCE
    app_id: str | None = None
    version: int | None = None
    max_in_flight: int = 1024
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    request_timeout_s: float = 10.0
    retry_timeout_s: float = 120.0
    """How long a broker that is busy or gone is tried again before the task fails."""

    @property
    def transactional(self) -> bool:
        return self.delivery == EXACTLY_ONCE

    @property
    def max_alone_in_flight(self) -> int:
        """Of those that do not travel in batches: a Java broker refuses what waits in it for 200 ms."""
        return min(self.max_in_flight, MOST_ALONE)


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    options = OptionReader(given, (*WRITE_OPTIONS, *_OF_SPARK))
    topic = options.text("topic")
    if topic is not None and (reason := validate_topic(topic)):
        raise BadOption("topic", reason, hint="name the topic that takes the rows")
    delivery = (options.text("delivery") or EXACTLY_ONCE).lower()
    if delivery not in (EXACTLY_ONCE, AT_LEAST_ONCE):
        raise BadOption(
            "delivery", f"it is '{delivery}'", hint=f"write '{EXACTLY_ONCE}' or '{AT_LEAST_ONCE}'"
        )
    app_id = options.text("txnAppId")
    if app_id is not None and not _APP_ID(app_id):
        raise BadOption(
            "txnAppId",
            f"it is '{app_id}'",
            hint="use up to 100 letters, digits and _ . : -, the same for every run of this job",
        )
    version = options.number("txnVersion", smallest=0)
    if version is not None and app_id is None:
        raise BadOption("txnVersion", "it is given without 'txnAppId'", hint="give both or neither")
    return SinkOptions(
        namesrv_option(options),
        topic,
        delivery,
        app_id,
        version,
        max_in_flight=options.number("maxInFlight") or SinkOptions.max_in_flight,
        max_body_bytes=options.number("maxBodyBytes") or SinkOptions.max_body_bytes,
        request_timeout_s=options.request_timeout_s(SinkOptions.request_timeout_s),
        retry_timeout_s=options.seconds("retryTimeoutMs", SinkOptions.retry_timeout_s),
    )


def producer_group(app_id: str) -> str:
    """The producer group of an application's half messages; group names know fewer characters than ids."""
    return GROUP_PREFIX + re.sub(r"[.:]", "-", app_id)
