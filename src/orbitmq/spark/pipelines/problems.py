"""What a command says when it fails: one line with the cause and what to do, and the exit code that goes with it."""

from __future__ import annotations

import argparse
import json
import re
import sys
from importlib import import_module
from typing import Final

from orbitmq.client.errors import BadRequest, NotFound, OrbitMQError, Unreachable
from orbitmq.spark.errors import SourceError
from orbitmq.spark.options import READ_OPTIONS
from orbitmq.spark.sink_options import WRITE_OPTIONS

FAILED, USAGE, NOT_FOUND, UNREACHABLE = 1, 2, 3, 4

SAID_BY: Final = "said_by"
"""Among the defaults of a parser: options of source or sink for which the command has a flag of its own."""

# The first that fits counts: a topic that is not there is named by an option as well.
_CODES: Final[tuple[tuple[type[OrbitMQError], int], ...]] = (
    (NotFound, NOT_FOUND),
    (Unreachable, UNREACHABLE),
    (BadRequest, USAGE),
)
# Of the pages that Spark wraps around an error: what this package said, what Java says was the cause, and where.
_OURS = re.compile(r"^(orbitmq(?:\.\w+)+): (.+)$", re.MULTILINE)
_CAUSE = re.compile(r"^(?:Caused by: )?[\w.$]*(?:Error|Exception): (.+)$", re.MULTILINE)
_PLACE = re.compile(r"Task failed while writing rows to (\S+?)\.?(?:\s|$)")
# Advice is written for programs: "set failOnDataLoss to false", 'use .option("delivery", "at-least-once")'.
_ADVICE = re.compile(
    r"(?:\bset|\braise|\(option) (?:the option )?(\w+)(?: to (\w+))?|\.option\(\"(\w+)\", \"([^\"]+)\"\)"
)


def tell_failure(error: Exception, args: argparse.Namespace) -> int:
    """Prints the line; the result is the exit code. An error that nobody foresaw is raised again."""
    what, hint, code = str(error), "", FAILED
    if isinstance(error, OrbitMQError):
        hint = "" if isinstance(error, SourceError) else error.hint
        code = exit_code(type(error))
    elif type(error).__module__.startswith(("pyspark", "py4j")):
        # Java's causes are only in the trace that PySpark keeps beside the message.
        pages = f"{what}\n{getattr(error, '_stackTrace', None) or ''}"
        what, code = spark_problem(pages), spark_exit_code(pages)
    elif not isinstance(error, OSError):
        raise error
    text = " ".join((f"{what}; {hint}" if hint else what).split())
    text += _as_arguments(text, args)
    print(
        json.dumps({"error": text, "exit_code": code}) if args.json else f"orbitmq: {text}", file=sys.stderr
    )
    return code


def exit_code(kind: type[BaseException]) -> int:
    return next((code for base, code in _CODES if issubclass(kind, base)), FAILED)


def spark_problem(text: str) -> str:
    """The line that a person needs out of the pages that Spark prints about an error in a task."""
    if ours := _OURS.findall(text):
        return str(ours[-1][1])
    place = _PLACE.search(text)
    where = f"{place[1]} cannot be written: " if place else ""
    if causes := _CAUSE.findall(text):
        return f"{where}{causes[-1]}"
    return text.strip().splitlines()[0] if text.strip() else "Spark failed without a word"


def spark_exit_code(text: str) -> int:
    """An error that was raised in Spark's Python processes comes as text only, but the text names its class."""
    ours = _OURS.findall(text)
    if not ours:
        return FAILED
    module, _, name = ours[-1][0].rpartition(".")
    try:
        kind = getattr(import_module(module), name, None)
    except ImportError:
        return FAILED
    return exit_code(kind) if isinstance(kind, type) else FAILED


def _as_arguments(text: str, args: argparse.Namespace) -> str:
    """How to follow the advice on this command line, where it names options of the source or the sink."""
    words = []
    for name, value, option, to in _ADVICE.findall(text):
        way = _argument(name or option, value or to, args)
        if way and way not in words:
            words.append(way)
    return f" (here: {' '.join(words)})" if words else ""


def _argument(name: str, value: str, args: argparse.Namespace) -> str | None:
    said: dict[str, str] = getattr(args, SAID_BY, {})
    if name in said:
        return said[name]
    value = value or ("5m" if name.endswith("Ms") else "VALUE")
    for flag, known in (("read", READ_OPTIONS), ("write", WRITE_OPTIONS)):
        if hasattr(args, flag) and name in known:
            return f"--{flag} {name}={value}"
    return None
