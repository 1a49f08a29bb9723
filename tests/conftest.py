"""Which tests stay together when two processes share them (`make test JOBS=2`), and what they may take for granted."""

from __future__ import annotations

import signal

import pytest

SPARK = "tests/spark/"


def pytest_configure() -> None:
    """A shell starts what it puts into the background deaf to Ctrl-C, and every process under it would be so, too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those of one file, because they share what its fixtures made; and all of Spark's, which share one session."""
    for item in items:
        file = item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(SPARK if file.startswith(SPARK) else file))
