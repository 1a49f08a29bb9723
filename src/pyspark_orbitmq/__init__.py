"""Lets Spark find the format `orbitmq`: it looks for packages named pyspark_… with a DefaultSource.

An import error in any such package makes Spark give up the whole search, so nothing is imported before it is asked
for, and an incomplete installation looks like a package without a source.
"""

from __future__ import annotations

import warnings
from typing import Any

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from orbitmq.spark.source import OrbitSource
    except ImportError as error:
        warnings.warn(
            f"the format orbitmq is not available: {error}; run `pip install 'orbitmq[spark]'`", stacklevel=2
        )
        raise AttributeError(name) from error
    return OrbitSource
