"""What the commands of all pipelines share: options, session, progress and report; `problems` has the errors.

The same `main` serves `orbitmq spark NAME`, `python -m orbitmq.spark.pipelines.NAME` and `spark-submit`. Reports go
to standard output, everything else to standard error.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from orbitmq.client.errors import BadRequest
from orbitmq.spark.errors import SourceError
from orbitmq.spark.pipelines.problems import SAID_BY, USAGE, tell_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
INTERRUPTED: Final = 130
TELL_EVERY_S: Final = 2

Tell = Callable[[str], None]

_TIMES: Final = "times"
_PAIRS: Final = "pairs"
_OF_THE_COMMAND: Final = ("namesrv", "master", "conf", "json", "quiet")
"""Not every pipeline needs name servers; the others are for the command alone."""

_AGO = re.compile(r"-?(\d+)(s|m|h|d)(?: ago)?").fullmatch
_AGO_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def new_parser(name: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"orbitmq spark {name}", description=description)
    common = parser.add_argument_group("common options")
    common.add_argument(
        "-n",
        "--namesrv",
        default=os.environ.get("NAMESRV_ADDR") or os.environ.get("ORBITMQ_NAMESRV") or DEFAULT_NAMESRV,
        metavar="ADDR[;ADDR]",
        help="name servers, HOST:PORT",
    )
    common.add_argument(
        "--master", default=None, help="where Spark runs: local[*] (default), spark://HOST:PORT"
    )
    common.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark; may be repeated",
    )
    common.add_argument("--json", action="store_true", help="print the report as JSON")
    common.add_argument("--quiet", action="store_true", help="no progress on standard error")
    return parser


def add_topics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-t", "--topics", required=True, action="append", help="topics (A,B), or one pattern")


def add_range(
    parser: argparse.ArgumentParser,
    start: str,
    until: str,
    *,
    since: str | None = None,
    to: str | None = None,
    needed: bool = False,
) -> None:
    """`--from` and `--until` as `start` and `end`; `since` and `to` stand in for those that are not given."""
    parser.add_argument("--from", dest="start", metavar="TIME", default=since, required=needed, help=start)
    parser.add_argument("--until", dest="end", metavar="TIME", default=to, help=until)
    parser.set_defaults(**{_TIMES: ("start", "end")})


def add_read_options(parser: argparse.ArgumentParser) -> None:
    """`--read NAME=VALUE` as `read`, a mapping: options of the source, for a pipeline that reads topics."""
    _add_pairs(parser, "read", "an option of the source, such as failOnDataLoss=false; may be repeated")


def add_write_options(parser: argparse.ArgumentParser) -> None:
    """`--write NAME=VALUE` as `write`, a mapping: options of the sink, for a pipeline that writes topics."""
    _add_pairs(parser, "write", "an option of the sink, such as retryTimeoutMs=5m; may be repeated")


def _add_pairs(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    parser.add_argument(f"--{name}", action="append", default=[], metavar="NAME=VALUE", help=text)
    parser.set_defaults(**{_PAIRS: (*(parser.get_default(_PAIRS) or ()), name)})


def said_by(parser: argparse.ArgumentParser, **flags: str) -> None:
    """Options of source or sink for which this command has an argument of its own, which errors then name."""
    parser.set_defaults(**{SAID_BY: flags})


def pairs(flag: str, given: Iterable[str]) -> dict[str, str]:
    """What NAME=VALUE says."""
    found: dict[str, str] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise BadRequest(f"{flag} {pair} has no value", hint=f"write {flag} NAME=VALUE")
        found[name.strip()] = value
    return found


def run_main(
    parser: argparse.ArgumentParser,
    pipeline: Callable[..., Any],
    argv: Sequence[str] | None,
    *,
    stages: bool = True,
) -> int:
    """Runs one pipeline from the command line; the result is the exit code.

    Options are named like the parameters of the pipeline. `stages`: it is a batch job, whose progress is told here. A
    report that has an `exit_code` tells by it that only a part was done.
    """
    try:
        args = parser.parse_args(argv)
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else USAGE
    tell: Tell = (lambda text: None) if args.quiet else _tell
    logging.getLogger().addFilter(_not_of_py4j)
    try:
        given = _parameters(pipeline, args, tell)
        spark = _session(parser.prog, args)
        with stages_told(spark, tell) if stages else nullcontext():
            report = pipeline(spark, **given)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        return tell_failure(error, args)
    print_report(report, as_json=args.json)
    return int(getattr(report, "exit_code", 0))


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """PySpark's way to Java prints pages about every call that was interrupted, and raises the same as an error."""
    return "py4j" not in record.pathname


def _parameters(pipeline: Callable[..., Any], args: argparse.Namespace, tell: Tell) -> dict[str, Any]:
    known = signature(pipeline).parameters
    given = dict(vars(args))
    for name in given.pop(_TIMES, ()):
        given[name] = moment(given[name]) if given[name] is not None else None
    for name in given.pop(_PAIRS, ()):
        given[name] = pairs(f"--{name}", given[name])
    given.pop(SAID_BY, None)
    for name in _OF_THE_COMMAND:
        if name not in known:
            given.pop(name)
    if "tell" in known:
        given["tell"] = tell
    return given


def _session(app: str, args: argparse.Namespace) -> SparkSession:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SourceError("PySpark is not installed", hint="run `pip install 'orbitmq[spark]'`") from error
    from orbitmq.spark.launch import session

    conf = pairs("--conf", args.conf)
    running = SparkSession.getActiveSession()
    if running is None and _is_submitted():
        # Spark has been told by then which master and settings it has; what stands behind the file comes too late.
        running = SparkSession.builder.appName(app).getOrCreate()
    if running is not None:
        return _as_asked(running, args.master, conf)
    return session(args.master or os.environ.get("MASTER") or "local[*]", app, **conf)


def _as_asked(spark: SparkSession, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    """A session that runs already, with what can still be set; what cannot is refused instead of being forgotten."""
    if master is not None and (is_connect(spark) or master != spark.sparkContext.master):
        raise BadRequest(
            f"--master {master} comes too late: Spark runs already",
            hint="give it to spark-submit, before the file of the pipeline",
        )
    for name, value in conf.items():
        if spark.conf.isModifiable(name):
            spark.conf.set(name, value)
        elif spark.conf.get(name, None) != value:
            raise BadRequest(
                f"--conf {name}={value} comes too late: Spark runs already, and this setting is made when it starts",
                hint="give it to spark-submit, before the file of the pipeline",
            )
    return spark


def _is_submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def print_report(report: Any, *, as_json: bool) -> None:
    fields = asdict(report) if is_dataclass(report) and not isinstance(report, type) else dict(report)
    if as_json:
        print(json.dumps(fields, default=str))
        return
    for name, value in fields.items():
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            print(f"\n{name.replace('_', ' ')}")
            print_rows(value)
        elif isinstance(value, Mapping):
            print(f"{name.replace('_', ' ')}")
            for key, item in value.items():
                print(f"  {key:<30} {_cell(item)}")
        else:
            print(f"{name.replace('_', ' '):<22} {_cell(value)}")


def print_rows(rows: Sequence[Mapping[str, Any]], *, widest: int = 60) -> None:
    names = list(rows[0])
    table = [[_cell(row.get(name))[:widest] for name in names] for row in rows]
    widths = [max(len(name), *(len(line[at]) for line in table)) for at, name in enumerate(names)]
    print("  ".join(name.upper().ljust(width) for name, width in zip(names, widths, strict=True)).rstrip())
    for line in table:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)


def moment(text: str, now: datetime | None = None) -> datetime:
    """`2026-11-15T10:00` (local unless it has a zone), milliseconds since 1970, `15m` or `2h` (ago), `now`."""
    now = now or datetime.now(UTC)
    text = text.strip()
    if text == "now":
        return now
    if match := _AGO(text):
        return now - timedelta(**{_AGO_UNITS[match[2]]: int(match[1])})
    if text.isdigit() and len(text) >= 12:
        return datetime.fromtimestamp(int(text) / 1000, UTC)
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise BadRequest(
            f"'{text}' is not a time",
            hint="write 2026-11-15T10:00, milliseconds since 1970, 15m, 2h or 3d (ago), or now",
        ) from None


def epoch_ms(when: datetime) -> int:
    return round(when.timestamp() * 1000)


def input_rows(progress: Mapping[str, Any]) -> int:
    """How many rows a micro-batch read. Over Spark Connect only its sources tell."""
    return sum(int(source["numInputRows"]) for source in progress["sources"])


def run_stream(
    writer: DataStreamWriter,
    every: str | None,
    tell: Tell,
    started: Callable[[StreamingQuery], None] = lambda query: None,
) -> tuple[int, int]:
    """Runs a stream until it has caught up, or with `every` until it is interrupted: rows read, and micro-batches."""
    query = (writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)).start()
    seen, read, batches = -1, 0, 0

    def look() -> None:
        nonlocal seen, read, batches
        for progress in list(query.recentProgress):
            rows = input_rows(progress)
            if progress["batchId"] > seen and rows:
                seen = int(progress["batchId"])
                read, batches = read + rows, batches + 1
                tell(f"batch {seen}: {rows:,} messages")

    try:
        started(query)
        while not query.awaitTermination(TELL_EVERY_S):
            look()
        look()
    except KeyboardInterrupt:
        query.stop()
        look()  # a batch may have ended since the last look
        tell("stopped: the next run goes on from here")
    finally:
        if query.isActive:
            query.stop()
    return read, batches


@contextmanager
def stages_told(spark: SparkSession, tell: Tell) -> Iterator[None]:
    """Tells every few seconds how many tasks of a batch job are done. Not over Spark Connect, which hides them."""
    ended = threading.Event()

    def watch() -> None:
        tracker = spark.sparkContext.statusTracker()
        while not ended.wait(TELL_EVERY_S):
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None:
                    tell(f"stage {stage}: {info.numCompletedTasks} of {info.numTasks} tasks done")

    watcher = threading.Thread(target=watch, name="orbitmq-progress", daemon=True)
    if not is_connect(spark):
        watcher.start()
    try:
        yield
    finally:
        ended.set()
        if watcher.is_alive():
            watcher.join(TELL_EVERY_S + 1)


def is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")
