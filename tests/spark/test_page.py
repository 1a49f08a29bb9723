"""docs/spark.md names every option and every column: what is not on the page does not exist for a user."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orbitmq.spark.options import READ_OPTIONS
from orbitmq.spark.schema import COLUMNS
from orbitmq.spark.sink_options import WRITE_OPTIONS
from orbitmq.spark.store_source import STORE_OPTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text("utf-8")


def first_cells(section: str) -> set[str]:
    """The names in the first column of the tables of a section and of those below it."""
    level, title = section.split(" ", 1)
    body = re.split(rf"^#{{1,{len(level)}}} ", PAGE.split(f"\n{section}\n", 1)[1], maxsplit=1, flags=re.M)[0]
    rows = re.findall(r"^\| (`.*?) \|", body, flags=re.M)
    assert rows, f"{title} has no table"
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("## Reading", {*READ_OPTIONS, *COLUMNS}),
        ("## Writing", set(WRITE_OPTIONS)),
        ("### A store directory", set(STORE_OPTIONS) - set(READ_OPTIONS)),
    ],
)
def test_the_page_names_every_option_and_column(section: str, names: set[str]) -> None:
    assert names - first_cells(section) == set()


def test_the_page_names_nothing_that_is_not_there() -> None:
    assert first_cells("## Reading") - {*READ_OPTIONS, *STORE_OPTIONS, *COLUMNS, "load"} == set()


def test_the_page_gives_the_columns_their_types() -> None:
    section = PAGE.split("\n## Reading\n", 1)[1].split("What to read", 1)[0]
    told: dict[str, str] = {}
    for names, types in re.findall(r"^\| (`.*?) \| (.*?) \|", section, flags=re.M):
        columns, kinds = (
            re.findall(r"`(\w+)`", names),
            re.split(r", ", types.replace("&lt;", "<").replace("&gt;", ">")),
        )
        told |= dict(zip(columns, kinds * len(columns) if len(kinds) == 1 else kinds, strict=False))
    assert told == COLUMNS
