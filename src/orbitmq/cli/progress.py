"""What long work is waiting for, on standard error: a bar for people, lines when nobody watches."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any, Self

from orbitmq.cli.output import note


class Watch:
    """Use it as a context manager; `shown=False` keeps it silent."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._bar: Any = nullcontext()
        self._task: Any = None
        self._most = 0
        self._told = ""
        if shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                console=Console(stderr=True),
            )

    def __enter__(self) -> Self:
        self._bar.__enter__()
        if not isinstance(self._bar, nullcontext):
            self._task = self._bar.add_task("", total=None)
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.__exit__(*error)

    def update(self, text: str, left: int) -> None:
        """What is going on, and how much of it is left; the most there ever was counts as all."""
        self._most = max(self._most, left)
        if self._task is not None:
            self._bar.update(self._task, description=text, total=self._most, completed=self._most - left)
        elif self._shown and text != self._told:
            note(text)
        self._told = text
