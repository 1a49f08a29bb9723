"""Minutes, not seconds: real clusters and killed processes. Without PySpark there is nothing to collect."""

from __future__ import annotations

import importlib.util

if any(importlib.util.find_spec(name) is None for name in ("pyspark", "pyarrow")):
    collect_ignore_glob = ["test_*.py"]
