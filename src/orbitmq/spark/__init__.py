"""Topics as Spark tables: batch and streaming reads, the store reader, and what a session needs.

In: options named like those of Spark's Kafka source, pages of records from brokers or from a store directory. Out:
Arrow record batches, one column at a time, never one row at a time. Spark runs the sources in worker processes of
its own, so everything here is blocking, can be pickled, and imports pyspark and pyarrow only where they are used.
May import `wire`, `client` (routes and errors) and `store` (the offline reader).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orbitmq.spark.launch import session

__all__ = ["session"]


def __getattr__(name: str) -> Any:
    if name == "session":
        from orbitmq.spark.launch import session

        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
