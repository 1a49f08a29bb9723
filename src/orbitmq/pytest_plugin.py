"""The pytest plugin: the fixture `orbitmq_server`, a real broker for one test.

pytest loads this module in every run, also where nobody uses it, so it imports nothing of ours before a test asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from orbitmq.testing import Server


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "orbitmq(**settings): settings of the broker behind `orbitmq_server`, by their keys in broker.conf",
    )


@pytest.fixture
def orbitmq_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A name server and a broker in this process, empty, on a clock that `advance` moves."""
    from orbitmq.testing import Server

    settings: dict[str, str | int | bool] = {}
    for marker in reversed(list(request.node.iter_markers("orbitmq"))):
        settings.update(marker.kwargs)
    with Server(tmp_path_factory.mktemp("orbitmq"), **settings) as server:
        yield server
