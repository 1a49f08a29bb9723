"""What is in an archive, read without Spark as docs/spark.md tells other readers to: by the list of finished files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq


def finished_files(archive: Path) -> list[Path]:
    """Each step has a file of lines, one per file it added; every tenth repeats all that there is before it."""
    steps: dict[int, Path] = {}
    compacted = -1
    for path in (archive / "_spark_metadata").iterdir():
        number = path.name.removesuffix(".compact")
        if number.isdigit():
            steps[int(number)] = path
            if path.name.endswith(".compact"):
                compacted = max(compacted, int(number))
    added: dict[str, str] = {}
    for number in sorted(number for number in steps if number >= compacted):
        for line in steps[number].read_text("utf-8").splitlines()[1:]:
            entry = json.loads(line)
            added[entry["path"]] = entry["action"]
    assert set(added.values()) <= {"add"}, added
    return [Path(unquote(urlparse(path).path)) for path in added]


def archived_bodies(archive: Path) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for path in finished_files(archive):
        # One file at a time: what the directories' names say is not asked for.
        found.update(pq.ParquetFile(path).read(columns=["body"]).column("body").to_pylist())
    return found
