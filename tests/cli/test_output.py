"""What is printed: JSON, tables, errors."""

from __future__ import annotations

import json

import pytest

from orbitmq.cli.output import (
    cell,
    print_error,
    print_fields,
    print_json,
    print_table,
    show,
    time_text,
)
from orbitmq.client.admin import QueueStatus


def test_unknown_is_never_shown_as_zero() -> None:
    assert [cell(value) for value in (None, 0, 1234567, 1.5, True, ["a", "b"])] == [
        "?",
        "0",
        "1,234,567",
        "1.50",
        "yes",
        "a, b",
    ]
    assert time_text(None, "never") == "never"
    assert time_text(10**20) == f"{10**20} ms"


def test_an_error_is_one_line_with_cause_and_fix(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("it\nbroke", "mend it", as_json=False, exit_code=1)
    assert capsys.readouterr().err == "orbitmq: it broke; mend it\n"


def test_an_error_is_an_object_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("it broke", "mend it", as_json=True, exit_code=4, code=17)
    assert json.loads(capsys.readouterr().err) == {
        "error": "it broke",
        "hint": "mend it",
        "exit_code": 4,
        "code": 17,
    }


def test_structs_become_objects(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(
        [QueueStatus(broker="a", queue_id=1, min_offset=0, max_offset=2, messages=2, last_update_ms=None)]
    )
    (row,) = json.loads(capsys.readouterr().out)
    assert row["last_update_ms"] is None


def test_a_table_in_a_pipe_is_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    long_name = "n" * 300
    print_table(["NAME", "COUNT"], [(long_name, 7), ("[markup]", None)], right=("COUNT",))
    lines = capsys.readouterr().out.splitlines()
    assert any(long_name in line and line.endswith("7") for line in lines)
    assert any("[markup]" in line and line.endswith("?") for line in lines)
    assert all(line == line.rstrip() for line in lines)


def test_an_empty_table_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["NAME"], [], empty="there is no topic yet")
    assert capsys.readouterr().out == "there is no topic yet\n"


def test_fields_stand_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields({"topic": "TopicA", "queue": 1})
    assert capsys.readouterr().out.split() == ["topic", "TopicA", "queue", "1"]


def test_the_form_asked_for_is_the_only_one_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show(True, {"a": 1}, lambda: print("table"))
    assert capsys.readouterr().out == '{"a":1}\n'
    show(False, {"a": 1}, lambda: print("table"))
    assert capsys.readouterr().out == "table\n"
