"""The names of the package: loaded when used, the same for people, programs and type checkers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import orbitmq

SOURCE = Path(orbitmq.__file__)


def fresh(code: str) -> str:
    """Runs code in an interpreter of its own; what it prints."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def names_for_type_checkers() -> dict[str, str]:
    """Each public name and the module it is imported from in the part that only type checkers read."""
    return {
        alias.asname: node.module
        for node in ast.walk(ast.parse(SOURCE.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("orbitmq.")
        for alias in node.names
        if alias.asname
    }


def test_every_public_name_is_there_and_is_what_type_checkers_believe() -> None:
    promised = names_for_type_checkers()
    assert sorted(promised) == sorted(set(orbitmq.__all__) - {"__version__"})
    for name, module in promised.items():
        assert getattr(orbitmq, name) is getattr(sys.modules[module], name), name
    assert set(orbitmq.__all__) <= set(dir(orbitmq))


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        orbitmq.conect  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_loads_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import orbitmq; new = set(sys.modules) - before; "
        "print(*sorted(new)); assert orbitmq.__version__"
    )
    assert set(fresh(code).split()) <= {"orbitmq", "__future__"}


def test_the_client_needs_neither_broker_nor_numpy_nor_uvloop() -> None:
    code = (
        "import sys, orbitmq; [getattr(orbitmq, name) for name in orbitmq.__all__]; orbitmq.sync; "
        "print(*sorted({name for name in sys.modules for heavy in "
        "('numpy', 'uvloop', 'typer', 'orbitmq.broker', 'orbitmq.store', 'orbitmq.namesrv', 'redis', 'psycopg') "
        "if name == heavy or name.startswith(heavy + '.')}))"
    )
    assert fresh(code) == ""


def test_a_broker_starts_without_numpy() -> None:
    """Its memory and start time are an idle broker's largest single part."""
    code = "import sys, orbitmq.server, orbitmq.broker.broker; print('numpy' in sys.modules)"
    assert fresh(code) == "False"


def test_modules_for_blocking_code_and_tests_are_reached_by_name() -> None:
    assert fresh("import orbitmq; print(orbitmq.sync.connect.__module__)") == "orbitmq.sync.client"
    assert fresh("import orbitmq; print(orbitmq.testing.Server.__name__)") == "Server"


def test_blocking_names_are_those_of_the_asynchronous_client() -> None:
    twins = {"Administration", "Client", "Consumer", "Message", "Producer", "Reader"}
    assert twins <= set(orbitmq.sync.__all__) & set(orbitmq.__all__)
    for name in twins - {"Client"}:
        theirs = {member for member in vars(getattr(orbitmq, name)) if not member.startswith("_")}
        ours = {member for member in dir(getattr(orbitmq.sync, name)) if not member.startswith("_")}
        assert theirs - ours <= ONLY_ASYNCHRONOUS.get(name, set()), name


# Ways of opening and closing that a context manager stands for, and what the engine's own parts use of each other.
ONLY_ASYNCHRONOUS: dict[str, set[str]] = {
    "Consumer": {"aclose", "consumer_data", "heartbeat_answer", "holdings", "rebalance_soon"},
    "Producer": {"aclose", "packed", "timeout_of"},
    "Reader": {"aclose", "open"},
}
