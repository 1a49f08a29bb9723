"""What a Python worker of Spark does to be at its best for one call of ours after the other.

Spark keeps its workers: some for tasks, one that makes sources, one or two that plan. Two habits that are right for
programs of one run cost such a process more than the reading itself, so they are changed while it is new.
"""

from __future__ import annotations

import gc
import itertools
import sys
from typing import Final

from orbitmq.allocation import keep_large_blocks

_NEW_FOR_CALLS: Final = 2
"""The first call imports more than we do: at the second one everything is there."""
_WORKER_PROGRAM: Final = "pyspark.daemon"

_calls = itertools.count(1)


def settle() -> None:
    """Call it at the beginning of what Spark asks for, after the imports. Leaves processes of others alone."""
    if not _in_a_worker():
        return
    number = next(_calls)
    if number <= _NEW_FOR_CALLS:
        # Spark collects garbage after every call: 20 to 50 ms of looking at modules that are never garbage.
        gc.collect()
        gc.freeze()
    if number == 1:
        keep_large_blocks()


def _in_a_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _WORKER_PROGRAM
