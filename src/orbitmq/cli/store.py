"""`orbitmq store …`: work on the directory of a broker, without the broker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbitmq.cli.options import Json
from orbitmq.cli.output import (
    CommandError,
    ExitCode,
    print_fields,
    print_line,
    print_table,
    show,
    time_text,
)

if TYPE_CHECKING:
    from orbitmq.store.verify_report import VerifyReport

app = typer.Typer(help="Check store directories, and see what is in them.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The storePathRootDir of a broker.")]
LogBytes = Annotated[
    int | None, typer.Option("--log-file-bytes", min=1, help="mappedFileSizeCommitLog, if it cannot be seen.")
]
Slots = Annotated[
    int | None, typer.Option("--index-slots", min=1, help="maxHashSlotNum, if it cannot be seen.")
]
Entries = Annotated[
    int | None, typer.Option("--index-entries", min=1, help="maxIndexNum, if it cannot be seen.")
]


@app.command()
def verify(
    directory: Directory,
    log_file_bytes: LogBytes = None,
    index_slots: Slots = None,
    index_entries: Entries = None,
    as_json: Json = False,
) -> None:
    """Check every record, queue and index entry; exit code 5 when something is damaged. Changes nothing."""
    report = _checked(directory, log_file_bytes, index_slots, index_entries, as_json)
    show(as_json, _verdict(report), lambda: _print_findings(report))
    if not report.ok:
        raise typer.Exit(ExitCode.DAMAGED)


@app.command()
def inspect(
    directory: Directory,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only the queues of this topic.")] = None,
    log_file_bytes: LogBytes = None,
    index_slots: Slots = None,
    index_entries: Entries = None,
    as_json: Json = False,
) -> None:
    """Show what a store holds: its log, its topics and queues, the time it covers."""
    report = _checked(directory, log_file_bytes, index_slots, index_entries, as_json)
    if topic is not None:
        report.queues = [queue for queue in report.queues if queue.topic == topic]
        if not report.queues:
            raise CommandError(
                f"the store in {directory} has no queue of topic '{topic}'",
                hint="leave --topic out to see what is there",
                exit_code=ExitCode.NOT_FOUND,
            )
    show(as_json, {**_summary(report), "queues": report.queues}, lambda: _print_contents(report))


def _checked(
    directory: Path, log_file_bytes: int | None, slots: int | None, entries: int | None, as_json: bool
) -> VerifyReport:
    from orbitmq.store.errors import StoreError
    from orbitmq.store.verify import verify_store
    from orbitmq.store.verify_report import StoreSizes

    if not (directory / "commitlog").is_dir():
        raise CommandError(
            f"{directory} holds no store",
            hint="give the storePathRootDir of a broker, the directory with commitlog in it",
            exit_code=ExitCode.NOT_FOUND,
        )
    sizes = StoreSizes(commit_log=log_file_bytes, index_slots=slots, index_entries=entries)
    with _progress(as_json) as progress:
        try:
            return verify_store(directory, sizes, progress=progress)
        except StoreError as error:
            raise CommandError(error.problem, hint=error.hint, exit_code=ExitCode.DAMAGED) from error
        except OSError as error:
            raise CommandError(
                f"{directory} cannot be read: {error}", hint="check its permissions"
            ) from error


@contextmanager
def _progress(as_json: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, where a person waits."""
    if as_json or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading the log")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _summary(report: VerifyReport) -> dict[str, Any]:
    return {
        "path": report.path,
        "clean_stop": report.clean_stop,
        "log_start": report.log_start,
        "log_end": report.log_end,
        "log_file_bytes": report.sizes.commit_log,
        "records": report.records,
        "last_ms": report.last_ms or None,
        "index_entries": report.index_entries,
    }


def _verdict(report: VerifyReport) -> dict[str, Any]:
    return {
        "ok": report.ok,
        **_summary(report),
        "damage": report.damage,
        "findings": report.findings,
        "suppressed": report.suppressed,
    }


def _print_findings(report: VerifyReport) -> None:
    for finding in report.findings:
        print_line(str(finding))
    for kind, count in report.suppressed.items():
        print_line(f"and {count:,} more of this kind: {kind}")
    errors, warnings = sum(1 for _ in report.of("error")), sum(1 for _ in report.of("warning"))
    verdict = "sound" if report.ok else "DAMAGED"
    print_line(
        f"{verdict}: {report.records:,} messages in {len(report.queues):,} queues, "
        f"{report.index_entries:,} index entries; {errors} errors, {warnings} warnings"
    )


def _print_contents(report: VerifyReport) -> None:
    print_fields(
        {
            "directory": report.path,
            "stopped cleanly": report.clean_stop,
            "log": f"{report.log_start:,} to {report.log_end:,}",
            "log files": f"{report.sizes.commit_log or 0:,} bytes each",
            "messages": report.records,
            "last message": time_text(report.last_ms or None, "none"),
            "index entries": report.index_entries,
            "damage": "none" if report.ok else "found: see `orbitmq store verify`",
        }
    )
    print_table(
        ["TOPIC", "QUEUE", "FIRST", "NEXT", "MESSAGES", "BYTES", "FIRST MESSAGE", "LAST MESSAGE"],
        [
            (
                queue.topic,
                queue.queue_id,
                queue.min_offset,
                queue.max_offset,
                queue.records,
                queue.record_bytes,
                time_text(queue.first_ms, "none"),
                time_text(queue.last_ms, "none"),
            )
            for queue in sorted(report.queues, key=lambda queue: (queue.topic, queue.queue_id))
        ],
        right=("QUEUE", "FIRST", "NEXT", "MESSAGES", "BYTES"),
        empty="there is no queue",
    )
