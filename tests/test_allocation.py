"""Large blocks that were freed are used again, without a page fault for every page."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from orbitmq.allocation import keep_large_blocks
if sys.argv[1] == "keep":
    keep_large_blocks()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
start = faults()
for number in range(100):
    reads = [b"x" * (250_000 + number) for _ in range(12)]
    del reads
print(faults() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def run(how: str) -> tuple[int, int]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, timeout=60, check=True
    )
    faults, most_kb = done.stdout.split()
    return int(faults), int(most_kb)


def test_freed_blocks_are_used_again() -> None:
    usual, usual_kb = run("usual")
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("the habit is that of one C library")
    kept, kept_kb = run("keep")
    assert usual > 10_000
    assert kept < usual / 10
    assert kept_kb < usual_kb + 8 * 1024
