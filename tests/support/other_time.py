"""A command that becomes a server whose clock is wrong: `other_time.py SECONDS PYTHON -m orbitmq ARGS`."""

from __future__ import annotations

import sys
import time


def main() -> int:
    ahead_ns = int(sys.argv[1]) * 1_000_000_000
    real = time.time_ns
    time.time_ns = lambda: real() + ahead_ns
    time.time = lambda: time.time_ns() / 1e9
    from orbitmq.cli.main import main as orbitmq

    return orbitmq(sys.argv[5:])


if __name__ == "__main__":
    sys.exit(main())
