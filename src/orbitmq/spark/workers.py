"""What a Python worker of Spark does to run many tasks of ours at their best.

Spark keeps its workers and gives them task after task. Two habits that are right for programs of one run cost such a
process more than the reading itself, so they are changed while it is new.
"""

from __future__ import annotations

import gc
import itertools
from typing import Final

from orbitmq.allocation import keep_large_blocks

_NEW_FOR_TASKS: Final = 2
"""The first task imports more than we do: at the second one everything is there."""

_tasks = itertools.count(1)


def settle() -> None:
    """Call it at the beginning of a task, after the imports."""
    number = next(_tasks)
    if number <= _NEW_FOR_TASKS:
        # Spark collects garbage after every task: 50 ms of looking at modules that are never garbage.
        gc.collect()
        gc.freeze()
    if number == 1:
        keep_large_blocks()
