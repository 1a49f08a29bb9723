"""`orbitmq cluster up`: a whole cluster on this machine, in the foreground."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from orbitmq.cli.options import Json
from orbitmq.cli.output import CommandError, ExitCode, note, print_json, print_line

if TYPE_CHECKING:
    from orbitmq.child_processes import Child, ChildProcesses
    from orbitmq.local_cluster import Member, Ports, Shape

ROLES_WAIT_S: Final = 5.0
ROLES_POLL_S: Final = 0.05
LOCK: Final = "lock"


class Replicate(StrEnum):
    SYNC = "sync"
    ASYNC = "async"


def up(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where its data, logs and ports are kept.", file_okay=False)
    ],
    masters: Annotated[int, typer.Option(min=1, help="Brokers that take messages.")] = 2,
    slaves: Annotated[int, typer.Option(min=0, help="Slaves of each master.")] = 1,
    controllers: Annotated[
        int, typer.Option(min=0, help="They make a slave master when its master dies; 0: roles are fixed.")
    ] = 1,
    namesrvs: Annotated[int, typer.Option(min=1, help="Name servers.")] = 2,
    replication: Annotated[
        Replicate, typer.Option(help="sync: a message is acknowledged when the slaves have it, too.")
    ] = Replicate.SYNC,
    etcd: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Memory of the controllers; more than one need it."),
    ] = None,
    lease_ms: Annotated[
        int | None,
        typer.Option(
            min=100, metavar="MS", help="How long a master serves without hearing from a controller."
        ),
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Start a process that died again.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of all brokers; can be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a cluster on this machine until Ctrl-C: name servers, controllers, masters and slaves.

    Data, logs and ports stay in DIR: the same command starts the same cluster again.
    """
    from orbitmq.config import ConfigError, parse_assignments
    from orbitmq.local_cluster import BadPlan, Shape, load_ports
    from orbitmq.store.errors import StoreLocked
    from orbitmq.store.file_lock import acquire

    try:
        chosen = parse_assignments(settings or [])
        shape = Shape(masters, slaves, controllers, namesrvs, replication.value, etcd, lease_ms, chosen)
        shape.check()
    except (BadPlan, ConfigError) as error:
        raise CommandError(str(error), exit_code=ExitCode.USAGE) from error
    directory = directory.expanduser().absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = acquire(str(directory / LOCK))
    except StoreLocked as error:
        raise CommandError(
            f"a cluster in {directory} is running already",
            hint=f"its addresses are in {directory / 'cluster.json'}; stop it, or choose another directory",
        ) from error
    except OSError as error:
        raise CommandError(f"{directory} cannot be used: {error.strerror or error}") from error
    try:
        asyncio.run(_run(shape, directory, load_ports(directory), restart=restart, as_json=as_json))
    except BadPlan as error:
        raise CommandError(str(error)) from error
    finally:
        lock.release()


async def _run(shape: Shape, directory: Path, ports: Ports, *, restart: bool, as_json: bool) -> None:
    from orbitmq.child_processes import ChildFailed, ChildProcesses
    from orbitmq.local_cluster import plan, save

    stop = _Signals()
    rows: list[dict[str, object]] = []

    def tell(text: str) -> None:
        for row, child in zip(rows, children.children, strict=False):
            row["pid"] = child.pid  # it may have been started again
        try:
            # Before it is told: who reads the line may then read the file.
            save(directory, ports, namesrv, rows)
        except OSError as error:
            text += f"\n{directory / 'cluster.json'} could not be written: {error.strerror or error}"
        note(text)

    children = ChildProcesses(directory, tell, restart=restart)
    stages = plan(shape, directory, ports)
    namesrv = ";".join(member.address for member in stages[0])
    save(directory, ports, namesrv, [])
    starting = asyncio.create_task(_start(children, stages))
    try:
        await stop.or_else(starting)
        if not starting.done():
            return
        children.watch()
        rows += await _rows(namesrv, starting.result())
        save(directory, ports, namesrv, rows)
        _show(namesrv, rows, as_json)
        await stop.wait()
    except ChildFailed as error:
        note(error.last_words)
        raise CommandError(error.what) from error
    finally:
        stop.second = children.kill
        starting.cancel()
        with suppress(asyncio.CancelledError, ChildFailed):
            await starting
        await children.stop()
        save(directory, ports, namesrv, [])
    if not as_json:
        print_line("OrbitMQ stopped")


async def _start(children: ChildProcesses, stages: list[list[Member]]) -> list[tuple[Member, Child]]:
    started: list[tuple[Member, Child]] = []
    for stage in stages:
        running = await children.start([member.spec for member in stage])
        started += zip(stage, running, strict=True)
    return started


class _Signals:
    """Ctrl-C and SIGTERM: the first ends the wait, a second one the patience."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self.second: Callable[[], None] = lambda: None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._take)

    def _take(self) -> None:
        if self._asked.is_set():
            self.second()
        self._asked.set()

    async def wait(self) -> None:
        await self._asked.wait()

    async def or_else(self, work: asyncio.Task[list[tuple[Member, Child]]]) -> None:
        """Until a signal comes or the work is done; its error is raised."""
        waiting = asyncio.create_task(self._asked.wait())
        await asyncio.wait({waiting, work}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if work.done():
            work.result()


async def _rows(namesrv: str, started: list[tuple[Member, Child]]) -> list[dict[str, object]]:
    roles = await _roles(namesrv, [member.address for member, _ in started if member.kind == "broker"])
    return [
        {
            "role": roles.get(member.address, member.kind),
            "name": member.name,
            "address": member.address,
            "pid": child.pid,
            "log": str(child.log_path),
        }
        for member, child in started
    ]


async def _roles(namesrv: str, brokers: list[str]) -> dict[str, str]:
    """master or slave by address, as the name servers have it; a broker they do not know yet is left out."""
    from orbitmq.client.cluster import Cluster
    from orbitmq.client.errors import OrbitMQError

    roles: dict[str, str] = {}
    with suppress(TimeoutError, OrbitMQError):
        async with asyncio.timeout(ROLES_WAIT_S), Cluster(namesrv) as cluster:
            while not set(brokers) <= roles.keys():
                known = await cluster.cluster_map()
                roles = {
                    addr: "slave" if broker_id else "master"
                    for broker in known.brokers.values()
                    for broker_id, addr in broker.addrs.items()
                }
                await asyncio.sleep(ROLES_POLL_S)
    return roles


def _show(namesrv: str, rows: list[dict[str, object]], as_json: bool) -> None:
    if as_json:
        print_json({"namesrv": namesrv, "processes": rows})
        return
    print_line("OrbitMQ ready")
    print_line(f"namesrv {namesrv}")
    widths = {key: max(len(str(row[key])) for row in rows) for key in ("role", "name", "address")}
    for row in rows:
        place = "  ".join(str(row[key]).ljust(width) for key, width in widths.items())
        print_line(f"{place}  pid {row['pid']}")
