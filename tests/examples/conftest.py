"""One server for all examples, each of which uses topics of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess


@pytest.fixture(scope="package")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("examples")
    # Open transactions are asked about after a second, so that nobody waits a minute for the outbox.
    quickly = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000}
    with ServerProcess(folder, **quickly) as server:
        yield server.namesrv
