"""The entry point of the `orbitmq` command.

A server must be ready in a fraction of a second, so the commands that start one are recognised here by their first
word and go past the libraries (typer, rich) that the other commands are made of.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

SERVER_COMMANDS: Final = ("server", "namesrv", "broker", "controller")
# Commands below the name of a server that start none.
TOOLS: Final = {"controller": ("show", "hand-over")}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; the result is the exit code of the process."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args and args[0] in SERVER_COMMANDS and args[1:2] not in [[tool] for tool in TOOLS.get(args[0], ())]:
        from orbitmq.cli.server_cmd import run_command

        return run_command(args[0], args[1:])
    from orbitmq.cli.app import run_app

    return run_app(args)
