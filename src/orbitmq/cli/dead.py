"""`orbitmq dead …`"""

from __future__ import annotations

import sys
from contextlib import aclosing, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orbitmq.cli.options import (
    DEFAULT_NAMESRV,
    DEFAULT_TIMEOUT_S,
    Json,
    Namesrv,
    Timeout,
    Yes,
    confirm,
    with_cluster,
)
from orbitmq.cli.output import (
    CommandError,
    ExitCode,
    note,
    print_fields,
    print_json,
    print_line,
    print_table,
    show,
    time_text,
)
from orbitmq.cli.times import TIME_HELP, parse_time

if TYPE_CHECKING:
    from orbitmq.client.admin.dead import DeadFilter
    from orbitmq.client.admin.redrive import RedriveReport
    from orbitmq.wire.message import Message

app = typer.Typer(help="See and redrive messages that consumers gave up on.", no_args_is_help=True)

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group.")]
Since = Annotated[str | None, typer.Option("--from", metavar="TIME", help=f"Died at or after {TIME_HELP}.")]
Until = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Died at or before this time.")]
Key = Annotated[str | None, typer.Option("--key", help="Only with this key.")]
Tag = Annotated[str, typer.Option("--tag", metavar="EXPR", help="Only these tags, 'A || B'.")]
Reason = Annotated[
    str | None,
    typer.Option("--reason", metavar="REGEX", help="Only where the reason of the failure matches."),
]
Max = Annotated[int, typer.Option("--max", min=1, help="At most this many.")]
DEFAULT_RATE = 100.0


@app.command("list")
def list_(
    group: Annotated[
        str | None, typer.Argument(metavar="[GROUP]", help="The consumer group; without it all are counted.")
    ] = None,
    since: Since = None,
    until: Until = None,
    key: Key = None,
    tag: Tag = "*",
    reason: Reason = None,
    max_num: Max = 100,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """List a group's dead letters, oldest first (one JSON object per line), or the groups that have any."""
    if group is None:
        _list_groups(namesrv, timeout, as_json)
        return
    from orbitmq.client.admin.dead import dead_letters, failure_reason, origin_topic
    from orbitmq.client.cluster import Cluster

    wanted = _filter(since, until, key, tag, reason)

    async def ask(cluster: Cluster) -> list[Message]:
        found: list[Message] = []
        async with aclosing(dead_letters(cluster, group, wanted)) as stream:
            async for message in stream:
                found.append(message)
                if len(found) == max_num:
                    break
        return found

    found = with_cluster(namesrv, timeout, ask)
    if as_json:
        for message in found:
            print_json(_document(message))
        return
    print_table(
        ["DIED", "TOPIC", "TRIES", "TAG", "KEYS", "MESSAGE ID", "REASON"],
        [
            (
                time_text(message.store_ms),
                origin_topic(message),
                message.reconsume_times,
                message.tags or "",
                " ".join(message.key_list),
                message.msg_id,
                failure_reason(message) or "",
            )
            for message in found
        ],
        right=("TRIES",),
        empty="no dead letter matches",
    )
    if len(found) == max_num:
        note(f"only the first {max_num} are shown; pass --max for more")


def _list_groups(namesrv: str, timeout: float, as_json: bool) -> None:
    from orbitmq.client.admin.dead import dead_groups

    groups = with_cluster(namesrv, timeout, dead_groups)
    show(
        as_json,
        groups,
        lambda: print_table(
            ["GROUP", "DEAD LETTERS", "LAST"],
            [(item.group, item.messages, time_text(item.last_ms, "never")) for item in groups],
            right=("DEAD LETTERS",),
            empty="no group has dead letters",
        ),
    )


@app.command("show")
def show_(
    group: Group,
    msg_id: Annotated[
        str, typer.Argument(metavar="ID", help="The message's id, or that of its dead letter.")
    ],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show one dead letter: where it came from, how often it was tried, and why it failed."""
    from orbitmq.cli.message_view import print_message
    from orbitmq.client.admin.dead import failure_reason, find_dead, origin_topic

    found = with_cluster(namesrv, timeout, lambda cluster: find_dead(cluster, group, msg_id))

    def render() -> None:
        print_fields(
            {
                "group": group,
                "came from": origin_topic(found) or "?",
                "died": f"{time_text(found.store_ms)}, tried {found.reconsume_times} times",
                "reason": failure_reason(found) or "its consumer gave none",
            }
        )
        print_line("")
        print_message(found)

    show(as_json, _document(found), render)


@app.command()
def redrive(
    group: Group,
    since: Since = None,
    until: Until = None,
    key: Key = None,
    tag: Tag = "*",
    reason: Reason = None,
    rate: Annotated[
        float, typer.Option(min=0.0, metavar="N", help="At most this many a second; 0 is no limit.")
    ] = DEFAULT_RATE,
    limit: Annotated[int | None, typer.Option("--max", min=1, help="Stop after this many.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be sent.")] = False,
    yes: Yes = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Send dead letters back to their topics. Safe to interrupt and to repeat: none is sent twice."""
    from orbitmq.client.admin.redrive import Redrive, RedriveReport
    from orbitmq.client.cluster import Cluster

    wanted = _filter(since, until, key, tag, reason)
    if not dry_run:
        confirm(f"Send dead letters of group {group} back to their topics?", yes, as_json)
    report = RedriveReport(group=group, dry_run=dry_run)

    async def work(cluster: Cluster) -> None:
        nonlocal report
        with _Bar(shown=not as_json and sys.stderr.isatty()) as bar:
            run = Redrive(cluster, group, wanted, rate=rate, limit=limit, dry_run=dry_run, on_step=bar.update)
            report = run.report
            await run.run()

    try:
        with_cluster(namesrv, timeout, work)
    except KeyboardInterrupt:
        report.stopped = "it was interrupted; run it again to go on"
        _report(report, as_json)
        raise
    if report.passed_over == report.looked_at:
        raise CommandError(
            f"none of the {report.looked_at:,} dead letters of group '{group}' matches",
            hint=f"see `orbitmq dead list {group}`",
            exit_code=ExitCode.NOT_FOUND,
        )
    _report(report, as_json)
    if report.failed:
        raise typer.Exit(ExitCode.FAILED)


class _Bar:
    """A progress bar on standard error, for people who watch."""

    def __init__(self, *, shown: bool) -> None:
        self._progress: Any = nullcontext()
        self._task: Any = None
        if shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[sent]} sent"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )

    def __enter__(self) -> _Bar:
        self._progress.__enter__()
        if not isinstance(self._progress, nullcontext):
            self._task = self._progress.add_task("redrive", total=None, sent=0)
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.__exit__(*error)

    def update(self, report: RedriveReport) -> None:
        if self._task is not None:
            self._progress.update(
                self._task, total=report.total, completed=report.looked_at, sent=report.sent
            )


def _filter(
    since: str | None, until: str | None, key: str | None, tag: str, reason: str | None
) -> DeadFilter:
    from orbitmq.client.admin.dead import DeadFilter, parse_reason
    from orbitmq.client.admin.messages import FOREVER_MS
    from orbitmq.client.cluster import wall_clock_ms

    now_ms = wall_clock_ms()
    return DeadFilter(
        since_ms=parse_time(since, now_ms) if since else 0,
        until_ms=parse_time(until, now_ms) if until else FOREVER_MS,
        key=key,
        tags=tag,
        reason=parse_reason(reason) if reason else None,
    )


def _document(message: Message) -> dict[str, object]:
    from orbitmq.cli.message_view import as_document
    from orbitmq.client.admin.dead import failure_reason, origin_topic

    return {
        "origin_topic": origin_topic(message),
        "reason": failure_reason(message),
        "tries": message.reconsume_times,
        "died_ms": message.store_ms,
        **as_document(message),
    }


def _report(report: RedriveReport, as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    verb = "would be sent" if report.dry_run else "sent back"
    fields: dict[str, object] = {
        "group": report.group,
        "looked at": f"{report.looked_at:,} of {report.total:,} dead letters",
        verb: report.sent,
    }
    for topic, count in sorted(report.topics.items()):
        fields[f"  to {topic}"] = count
    fields["sent before"] = report.already_sent
    fields["not matching"] = report.passed_over
    fields["failed"] = report.failed
    if report.stopped:
        fields["stopped"] = report.stopped
    print_fields(fields)
    for failure in report.failures:
        note(f"{failure.msg_id}: {failure.reason}")
    if report.failed > len(report.failures):
        note(f"and {report.failed - len(report.failures):,} more failed")
    if report.failed:
        note("those that failed stay dead letters: mend the cause and run the same command again")
