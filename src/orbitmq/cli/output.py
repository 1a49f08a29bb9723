"""What commands print: tables for people, JSON for programs, and errors for both."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

if TYPE_CHECKING:
    from rich.table import Table

# Wide enough that nothing wraps where there is no terminal.
PIPE_WIDTH = 10_000
ALARM = "bold red"


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    DAMAGED = 5


EXIT_CODES_HELP = "Exit codes: 0 done, 1 failed, 2 wrong use, 3 not found, 4 unreachable, 5 damaged."


class CommandError(Exception):
    """A command cannot go on: the cause, the fix, and the exit code it ends with."""

    def __init__(self, what: str, *, hint: str = "", exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(what)
        self.hint = hint
        self.exit_code = exit_code


class OutputClosed(Exception):
    """Whoever read our output (`| head`) has seen enough."""


def json_text(value: Any) -> str:
    """One JSON document on one line; structs become objects."""
    return msgspec.json.encode(value).decode()


def print_json(value: Any, *, pretty: bool = False) -> None:
    encoded = msgspec.json.encode(value)
    if pretty:
        encoded = msgspec.json.format(encoded, indent=2)
    print_line(encoded.decode())


def print_line(text: str) -> None:
    """A plain line, at once: `tail` is read while it runs."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Without a new place for the rest the interpreter would complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputClosed from None


def print_red(text: str) -> None:
    """A line that must not be overlooked; plain where there is no terminal."""
    if not sys.stdout.isatty():
        print_line(text)
        return
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False).print(Text(text, style=ALARM))


def note(text: str) -> None:
    """Something worth knowing that is not the result."""
    print(text, file=sys.stderr, flush=True)


def print_error(
    what: str,
    hint: str,
    *,
    as_json: bool,
    exit_code: int,
    code: int | None = None,
    stream: TextIO | None = None,
) -> None:
    stream = stream or sys.stderr
    if as_json:
        fields: dict[str, Any] = {"error": what, "hint": hint, "exit_code": int(exit_code)}
        if code is not None:
            fields["code"] = code
        line = json_text(fields)
    else:
        line = "orbitmq: " + " ".join((f"{what}; {hint}" if hint else what).split())
    print(line, file=stream, flush=True)


def print_rich(table: Table) -> None:
    """As wide as the terminal; into a file or pipe as wide as the text, without blanks at the line ends."""
    from rich.console import Console

    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    console = Console(width=PIPE_WIDTH, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(table)
    print_line("\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines()))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    title: str | None = None,
    empty: str = "nothing to show",
    red: Sequence[bool] = (),
) -> None:
    """A table; columns named in `right` hold numbers. None is shown as `?`: unknown is never zero.

    Rows marked in `red` are an alarm.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = [[Text(cell(value)) for value in row] for row in rows]
    if not shown:
        print_line(f"{title}: {empty}" if title else empty)
        return
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for name in columns:
        # Names are folded, never cut: what is shown can be copied into the next command.
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for index, line in enumerate(shown):
        table.add_row(*line, style=ALARM if index < len(red) and red[index] else None)
    print_rich(table)


def print_fields(fields: Mapping[str, object], *, title: str | None = None) -> None:
    """Names and values below each other."""
    from rich.table import Table
    from rich.text import Text

    if title:
        print_line(title)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in fields.items():
        grid.add_row(Text(name, style="bold"), Text(cell(value)))
    print_rich(grid)


def cell(value: object) -> str:
    if value is None:
        return "?"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(map(str, value))
    return str(value)


def time_text(ms: int | None, absent: str = "?") -> str:
    """A moment in local time, to the millisecond."""
    if ms is None:
        return absent
    try:
        return datetime.fromtimestamp(ms / 1000).isoformat(sep=" ", timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def show(as_json: bool, value: Any, render: Callable[[], None]) -> None:
    """The one result of a command, in the form that was asked for."""
    if as_json:
        print_json(value, pretty=sys.stdout.isatty())
    else:
        render()
