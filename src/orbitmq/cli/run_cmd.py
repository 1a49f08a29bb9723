"""`orbitmq run module:app`: runs the handlers of an `orbitmq.App` until it is told to stop."""

from __future__ import annotations

import importlib
import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from orbitmq.cli.output import CommandError, ExitCode, print_line

if TYPE_CHECKING:
    from orbitmq.client.app import App

LOOK_EVERY_S: Final = 0.3
STOP_LIMIT_S: Final = 30.0
NOT_WATCHED: Final = frozenset({"__pycache__", "node_modules", "venv", "site-packages", "build", "dist"})

Snapshot = Mapping[Path, int]


def run(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:APP", help="Where the App is, as in `shop.main:app`.")
    ],
    namesrv: Annotated[
        str | None,
        typer.Option("-n", "--namesrv", metavar="ADDR[;ADDR]", help="Name servers instead of the app's own."),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when a .py file changes; for development.")
    ] = False,
    reload_dir: Annotated[
        list[Path] | None,
        typer.Option("--reload-dir", metavar="DIR", help="Watch this directory instead of the current one."),
    ] = None,
) -> None:
    """Run the handlers of an App until Ctrl-C or SIGTERM; what is being handled is finished first."""
    if reload:
        words = [sys.executable, "-m", "orbitmq", "run", target, *(["-n", namesrv] if namesrv else [])]
        raise typer.Exit(run_and_reload(words, reload_dir or [Path.cwd()]))
    app = load_app(target)
    if namesrv is not None:
        app.namesrv = namesrv
    _log_to_stderr()

    def ready() -> None:
        what = ", ".join(f"{group} ({', '.join(topics)})" for group, topics in app.handlers.items())
        print_line(f"OrbitMQ app ready  {target}  groups {what or 'none'}")

    app.run(ready=ready)
    print_line("OrbitMQ app stopped")


def load_app(target: str) -> App:
    """Imports `module:name`; the name may have dots, and may be a function that makes the app."""
    from orbitmq.client.app import App

    module_name, colon, name = target.partition(":")
    if not module_name or not colon or not name:
        raise CommandError(
            f"'{target}' does not say where the app is",
            hint="write MODULE:APP, for example `orbitmq run shop.main:app`",
            exit_code=ExitCode.USAGE,
        )
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # the module is there; one that it imports is not
        raise CommandError(
            f"there is no module '{error.name}'",
            hint="start the command in the directory of your program, or install it",
            exit_code=ExitCode.NOT_FOUND,
        ) from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            apps = sorted(key for key, value in vars(found).items() if isinstance(value, App))
            raise CommandError(
                f"'{module_name}' has no '{name}'",
                hint=f"apps there: {', '.join(apps)}" if apps else "define `app = orbitmq.App(...)`",
                exit_code=ExitCode.NOT_FOUND,
            ) from None
    if not isinstance(found, App) and inspect.isfunction(found):
        found = found()
    if not isinstance(found, App):
        raise CommandError(
            f"'{target}' is {type(found).__name__}, not an App",
            hint="define `app = orbitmq.App(...)` and name that",
            exit_code=ExitCode.USAGE,
        )
    return found


def run_and_reload(
    words: list[str],
    folders: Iterable[Path],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Keeps a child running and starts it anew after every change. Ends with Ctrl-C."""
    watched = [folder.resolve() for folder in folders]
    # Bytecode is told to be stale by whole seconds and the size: two changes within one would run the first again.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    before = snapshot(watched)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    child = subprocess.Popen(words, env=env)
    told_ended = False
    try:
        while True:
            sleep(LOOK_EVERY_S)
            now = snapshot(watched)
            if now != before:
                changed = sorted(changes(before, now))
                print_line(f"changed: {', '.join(path.name for path in changed[:5])}; starting again")
                before = now
                _stop(child)
                child = subprocess.Popen(words, env=env)
                told_ended = False
            elif child.poll() is not None and not told_ended:
                told_ended = True
                print_line(f"the app ended with {child.returncode}; waiting for a change")
    except KeyboardInterrupt:
        return _stop(child)
    finally:
        _stop(child)


def snapshot(folders: Iterable[Path]) -> dict[Path, int]:
    """Every Python file below the folders with the time of its last change."""
    found: dict[Path, int] = {}
    for folder in folders:
        for place, names, files in os.walk(folder):
            names[:] = [name for name in names if name not in NOT_WATCHED and not name.startswith(".")]
            for file in files:
                if file.endswith(".py"):
                    path = Path(place, file)
                    try:
                        found[path] = path.stat().st_mtime_ns
                    except FileNotFoundError:
                        continue  # removed while we looked
    return found


def changes(before: Snapshot, now: Snapshot) -> set[Path]:
    return {path for path in before.keys() | now.keys() if before.get(path) != now.get(path)}


def _stop(child: subprocess.Popen[bytes]) -> int:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    return child.returncode


def _log_to_stderr() -> None:
    """Only where the program has not set up its logging itself."""
    import logging

    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
