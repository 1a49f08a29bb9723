"""The small files that Spark keeps beside its data, wherever they are: a directory, HDFS, an object store.

Through the file systems that Spark itself uses. Over Spark Connect these are out of reach; there Spark's reader of
texts does, which does not show what is in `_spark_metadata`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from orbitmq.spark.pipelines.command import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SmallFiles(Protocol):
    sees_metadata: bool
    """Whether `_spark_metadata` can be looked at."""

    def names(self, directory: str) -> list[str]:
        """The files in it; none where it does not exist."""
        ...

    def lines(self, path: str) -> list[str]:
        """Of one file, or of all in a directory; none where it does not exist."""
        ...

    def replace(self, directory: str, line: str) -> None:
        """Makes this the only line in a directory."""
        ...


def small_files(spark: SparkSession) -> SmallFiles:
    return ConnectFiles(spark) if is_connect(spark) else HadoopFiles(spark)


class HadoopFiles:
    sees_metadata = True

    def __init__(self, spark: SparkSession) -> None:
        java: Any = spark
        self._hadoop = java.sparkContext._jvm.org.apache.hadoop
        self._to_text = java.sparkContext._jvm.org.apache.commons.io.IOUtils.toString
        self._conf = java._jsparkSession.sessionState().newHadoopConf()

    def names(self, directory: str) -> list[str]:
        where, files = self._at(directory)
        if not files.exists(where):
            return []
        return [str(status.getPath().getName()) for status in files.listStatus(where)]

    def lines(self, path: str) -> list[str]:
        where, files = self._at(path)
        if not files.exists(where):
            return []
        found: list[str] = []
        for status in files.listStatus(where):
            if not str(status.getPath().getName()).startswith((".", "_")):
                stream = files.open(status.getPath())
                try:
                    found += str(self._to_text(stream, "UTF-8")).splitlines()
                finally:
                    stream.close()
        return found

    def replace(self, directory: str, line: str) -> None:
        where, files = self._at(directory)
        files.delete(where, True)
        stream = files.create(self._hadoop.fs.Path(where, "note"), True)
        try:
            stream.write(bytearray(line.encode() + b"\n"))
        finally:
            stream.close()

    def _at(self, path: str) -> tuple[Any, Any]:
        where = self._hadoop.fs.Path(path)
        return where, where.getFileSystem(self._conf)


class ConnectFiles:
    sees_metadata = False

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def names(self, directory: str) -> list[str]:
        from pyspark.errors import AnalysisException

        try:
            return [path.rsplit("/", 1)[-1] for path in self._spark.read.text(directory).inputFiles()]
        except AnalysisException as error:
            return self._nothing(error)

    def lines(self, path: str) -> list[str]:
        from pyspark.errors import AnalysisException

        try:
            return [str(row["value"]) for row in self._spark.read.text(path).collect()]
        except AnalysisException as error:
            return self._nothing(error)

    def replace(self, directory: str, line: str) -> None:
        table = self._spark.createDataFrame([(line,)], "value string").coalesce(1)
        table.write.mode("overwrite").text(directory)

    @staticmethod
    def _nothing(error: Any) -> list[str]:
        if error.getCondition() == "PATH_NOT_FOUND":
            return []
        raise error
