"""One Spark session and one server for all tests here. Without PySpark the folder has no tests to collect."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.topics import Topics
    from tests.support.server_process import ServerProcess

if any(importlib.util.find_spec(name) is None for name in ("pyspark", "pyarrow")):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    import orbitmq.spark

    root = Path(__file__).resolve().parents[2]
    # Workers are processes of their own: they find the sources through the path, installed or not.
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(root / "src"), str(root), *([inherited] if inherited else [])]
    )
    session = orbitmq.spark.session(
        "local[2]",
        app="tests",
        **{
            "spark.driver.memory": "1g",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            "spark.sql.shuffle.partitions": 2,
            # Queries of a second: the second compiler would take more time than it saves.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    from tests.support.server_process import ServerProcess

    with ServerProcess(tmp_path_factory.mktemp("server"), flushDiskType="ASYNC_FLUSH") as running:
        yield running


@pytest.fixture(scope="session")
def topics(server: ServerProcess) -> Iterator[Topics]:
    from tests.spark.topics import Topics

    filler = Topics(server.broker_addr)
    yield filler
    filler.close()
