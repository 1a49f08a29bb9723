"""The format `orbitmq`: topics as tables, `spark.read.format("orbitmq").option("subscribe", "orders").load()`.

Spark makes these objects in worker processes, pickles them and calls them there; nothing is kept between calls. Only
what a schema needs is imported here: Spark starts a process just to ask for it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource

from orbitmq.spark.options import READ_OPTIONS, OptionReader, parse_read_options
from orbitmq.spark.schema import columns_of, ddl, parse_columns
from orbitmq.spark.workers import settle

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )

FORMAT: Final = "orbitmq"
_PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


class OrbitSource(DataSource):
    """Found by Spark through the package `pyspark_orbitmq`; `spark.dataSource.register` works as well."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        settle()
        columns = OptionReader(self.options, READ_OPTIONS).text("columns")
        return ddl(parse_columns(columns or ""))

    def reader(self, schema: Any) -> DataSourceReader:
        from orbitmq.spark.batch import OrbitReader, PushingReader

        settle()
        options = parse_read_options(self.options, streaming=False)
        # Spark refuses a reader with pushFilters where push-down is off, so there must be one without.
        kind = PushingReader if filters_are_pushed() else OrbitReader
        return kind(options, columns_of(schema))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        from orbitmq.spark.stream import OrbitStreamReader

        return OrbitStreamReader(parse_read_options(self.options, streaming=True), columns_of(schema))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        from orbitmq.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        from orbitmq.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


def filters_are_pushed() -> bool:
    """Whether we are in the process that Spark starts to hand conditions over."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or (spec is not None and spec.name == _PUSHDOWN_WORKER)
