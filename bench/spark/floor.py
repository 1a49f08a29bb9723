"""A source written in Python that reads nothing: it hands out one batch of bodies that it made before, again and again.

What a query over it costs is Spark's own price for such a source; no other that Spark reads in rows can be cheaper.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bench.spark.load import CORES, FLOOR

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_BYTES = 2 << 20


def register(spark: SparkSession) -> None:
    """Classes made in here travel to the workers by value, so that these need not find this module."""
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    name, cores, batch_bytes = FLOOR, CORES, BATCH_BYTES

    class FloorReader(DataSourceReader):
        def __init__(self, rows: int, size: int) -> None:
            self._rows = rows
            self._size = size

        def partitions(self) -> list[InputPartition]:
            borders = [self._rows * number // cores for number in range(cores + 1)]
            return [InputPartition(borders[number + 1] - borders[number]) for number in range(cores)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            from orbitmq.spark.workers import settle

            settle()  # as our readers do
            rows = max(batch_bytes // self._size, 1)
            bodies = pa.array([b"0" * self._size] * rows, pa.binary())
            batch = pa.RecordBatch.from_arrays([bodies], ["body"])
            for start in range(0, partition.value, rows):
                yield batch.slice(0, min(rows, partition.value - start))

    class Floor(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return "body binary"

        def reader(self, schema: Any) -> DataSourceReader:
            return FloorReader(int(self.options["rows"]), int(self.options["size"]))

    spark.dataSource.register(Floor)
