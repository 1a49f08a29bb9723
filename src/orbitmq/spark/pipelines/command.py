"""What the commands of all pipelines share: options, session, progress, report, and errors as one line.

The same `main` serves `orbitmq spark NAME`, `python -m orbitmq.spark.pipelines.NAME` and `spark-submit`. Reports go
to standard output, everything else to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from orbitmq.client.errors import BadRequest, NotFound, OrbitMQError, Unreachable
from orbitmq.spark.errors import SourceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
FAILED, USAGE, NOT_FOUND, UNREACHABLE = 1, 2, 3, 4
TELL_EVERY_S: Final = 2

Tell = Callable[[str], None]

_TIMES: Final = "times"
_OF_THE_COMMAND: Final = ("namesrv", "master", "conf", "json", "quiet")
"""Not every pipeline needs name servers; the others are for the command alone."""

_AGO = re.compile(r"-?(\d+)(s|m|h|d)(?: ago)?").fullmatch
_AGO_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
# Of the pages that Spark wraps around an error: what this package said, what Java says was the cause, and where.
_OURS = re.compile(r"^orbitmq(?:\.\w+)+: (.+)$", re.MULTILINE)
_CAUSE = re.compile(r"^(?:Caused by: )?[\w.$]*(?:Error|Exception): (.+)$", re.MULTILINE)
_PLACE = re.compile(r"Task failed while writing rows to (\S+?)\.?(?:\s|$)")


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


def run_main(
    parser: argparse.ArgumentParser,
    pipeline: Callable[..., Any],
    argv: Sequence[str] | None,
    *,
    stages: bool = True,
) -> int:
    """Runs one pipeline from the command line; the result is the exit code.

    Options are named like the parameters of the pipeline. `stages`: it is a batch job, whose progress is told here.
    """
    try:
        args = parser.parse_args(argv)
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else USAGE
    tell: Tell = (lambda text: None) if args.quiet else _tell
    try:
        given = _parameters(pipeline, args, tell)
        spark = _session(parser.prog, args)
        with stages_told(spark, tell) if stages else nullcontext():
            report = pipeline(spark, **given)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        return _failed(error, as_json=args.json)
    print_report(report, as_json=args.json)
    return 0


def _parameters(pipeline: Callable[..., Any], args: argparse.Namespace, tell: Tell) -> dict[str, Any]:
    known = signature(pipeline).parameters
    given = dict(vars(args))
    for name in given.pop(_TIMES, ()):
        given[name] = moment(given[name]) if given[name] is not None else None
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

    conf: dict[str, str | int | bool] = {}
    for pair in args.conf:
        name, equals, value = pair.partition("=")
        if not equals:
            raise BadRequest(f"--conf {pair} has no value", hint="write --conf NAME=VALUE")
        conf[name] = value
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    # Under spark-submit the master is in the settings of the process, which must not be overruled.
    master = args.master or os.environ.get("MASTER") or ("" if _is_submitted() else "local[*]")
    if not master:
        return SparkSession.builder.appName(app).getOrCreate()
    return session(master, app, **conf)


def _is_submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _failed(error: Exception, *, as_json: bool) -> int:
    what, hint = str(error), ""
    code = FAILED
    if isinstance(error, OrbitMQError):
        hint = "" if isinstance(error, SourceError) else error.hint
        kinds: list[tuple[type[OrbitMQError], int]] = [
            (Unreachable, UNREACHABLE),
            (NotFound, NOT_FOUND),
            (BadRequest, USAGE),
        ]
        code = next((exit_code for kind, exit_code in kinds if isinstance(error, kind)), FAILED)
    elif type(error).__module__.startswith(("pyspark", "py4j")):
        # Java's causes are only in the trace that PySpark keeps beside the message.
        what = spark_problem(f"{what}\n{getattr(error, '_stackTrace', None) or ''}")
    elif not isinstance(error, OSError):
        raise error
    text = " ".join((f"{what}; {hint}" if hint else what).split())
    print(json.dumps({"error": text, "exit_code": code}) if as_json else f"orbitmq: {text}", file=sys.stderr)
    return code


def spark_problem(text: str) -> str:
    """The line that a person needs out of the pages that Spark prints about an error in a task."""
    if ours := _OURS.findall(text):
        return str(ours[-1])
    place = _PLACE.search(text)
    where = f"{place[1]} cannot be written: " if place else ""
    if causes := _CAUSE.findall(text):
        return f"{where}{causes[-1]}"
    return text.strip().splitlines()[0] if text.strip() else "Spark failed without a word"


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


def run_stream(writer: DataStreamWriter, every: str | None, tell: Tell) -> tuple[int, int]:
    """Runs a stream until it has caught up, or with `every` until it is interrupted: rows read, and micro-batches."""
    query = (writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)).start()
    seen, read, batches = -1, 0, 0
    try:
        while True:
            ended = query.awaitTermination(TELL_EVERY_S)
            for progress in list(query.recentProgress):
                rows = input_rows(progress)
                if progress["batchId"] > seen and rows:
                    seen = int(progress["batchId"])
                    read, batches = read + rows, batches + 1
                    tell(f"batch {seen}: {rows:,} messages")
            if ended:
                break
    except KeyboardInterrupt:
        query.stop()
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
