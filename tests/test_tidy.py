"""Style that no reviewer should have to look for: rooms, sizes, hidden clocks, promises without tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "orbitmq"
FOREIGN = ("tests/interop", "tests/data", "bench/client", "bench/peer", "bench/results")
MAX_LINES = 500

# What each room may import of ours, besides itself. `config` stands for config.py and its parts.
MAY_IMPORT: dict[str, set[str]] = {
    "wire": set(),
    "accel": set(),
    "properties_text": set(),
    "config": {"properties_text"},
    "net": {"wire"},
    "store": {"wire", "accel", "config"},
    "namesrv": {"wire", "net", "config", "properties_text"},
    "cluster": {"wire", "store", "net"},
    "broker": {"wire", "accel", "net", "store", "cluster", "config", "properties_text"},
    "client": {"wire", "net", "properties_text"},
    "server": {
        "wire",
        "net",
        "store",
        "namesrv",
        "broker",
        "cluster",
        "config",
        "child_processes",
        "allocation",
    },
    "spark": {"wire", "accel", "client", "store", "allocation"},
    "pyspark_orbitmq": {"spark"},
    "pyspark_orbitmq_store": {"spark"},
    "cli": {"wire", "client", "store", "config", "server", "spark", "child_processes", "local_cluster"},
    "loop_thread": set(),
    "child_processes": set(),
    "allocation": set(),
    "local_cluster": {"child_processes"},
    "sync": {"client", "loop_thread", "wire"},
    "testing": {"broker", "client", "config", "loop_thread", "namesrv", "store", "sync", "wire"},
    "pytest_plugin": {"testing"},
    "__main__": {"cli"},
    "__init__": {"client", "wire"},
}
PARTS_OF_CONFIG = {"config_controller", "config_keys", "config_model"}

# Time, chance and files are parameters everywhere else; these modules are where they come from.
OWN_THE_OUTSIDE = ("store/disk.py", "store/faulty_disk.py", "store/file_lock.py", "config.py")
OWN_THE_OUTSIDE += ("cli/", "server.py", "testing.py", "namesrv/kv_config.py")
OWN_THE_OUTSIDE += (
    "spark/java.py",
    "spark/extension.py",
    "spark/launchers.py",
    "spark/pipelines/",
)  # pipelines are programs: they write reports and files
OWN_THE_OUTSIDE += (
    "client/cluster.py",
)  # a library's user need not bring a clock, so its default lives there
OWN_THE_OUTSIDE += ("child_processes.py", "local_cluster.py")  # logs and ports of processes on this machine
OWN_THE_OUTSIDE += ("client/broadcast.py",)  # a broadcasting member keeps its progress in a file of its own
CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
CHANCE = {
    "random." + name for name in ("random", "randrange", "randint", "choice", "shuffle", "sample", "uniform")
}
FILE_CALLS = {"open", "io.open", "mmap.mmap"}
OS_CALLS = """open pread preadv pwrite pwritev fsync fdatasync ftruncate truncate listdir scandir unlink
    remove rename replace makedirs mkdir rmdir stat posix_fallocate statvfs"""
FILE_CALLS |= {f"os.{name}" for name in OS_CALLS.split()}
OUTSIDE = CLOCKS | CHANCE | FILE_CALLS
FILE_METHODS = {"read_text", "read_bytes", "write_text", "write_bytes"}

UNFINISHED = re.compile(
    "|".join(("TO" + "DO", "FIX" + "ME", "raise NotImplemented" + "Error", r"mark\.(skip|x" + "fail)"))
)
MACHINE_PATH = re.compile(r"(?<![\w.~])/(" + "|".join(("work", "farm", "root", "home")) + r")/\w")
TEXT = {".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".txt", ".lock", ""}

FEATURES = {"A": 3, "B": 6, "C": 3, "D": 5, "E": 9, "F": 8, "G": 7, "H": 5, "I": 5, "J": 9}
FEATURE_IDS = {f"{letter}{number}" for letter, count in FEATURES.items() for number in range(1, count + 1)}
FEATURE_ROW = re.compile(r"^\| ([A-Z]\d+) \| .* \| (.*?) \|$", re.MULTILINE)
TEST_REFERENCE = re.compile(r"`(tests/[\w./-]+\.py)(?:::(\w+))?`")
KIT_REFERENCE = re.compile(r"`interop ([a-z-]+):([\w-]+)`")


def python_files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")) if ours(path)]


def ours(path: Path) -> bool:
    name = path.relative_to(ROOT).as_posix()
    return not name.startswith(FOREIGN) and "__pycache__" not in name


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), relative(path))


SOURCES = python_files("src")
ALL_PYTHON = python_files("src", "tests", "bench", "scripts")


def room_of(dotted: str) -> str:
    """`orbitmq.store.disk` is in the room `store`; `orbitmq` alone is the package itself."""
    room = [*dotted.split("."), "__init__"][1]
    if room == "__version__":
        return "__init__"
    return "config" if room in PARTS_OF_CONFIG else room


def imported_modules(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level > 0:
            yield node.lineno, "."
        elif isinstance(node, ast.ImportFrom) and node.module == "orbitmq":
            yield from ((node.lineno, f"orbitmq.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module


def called_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func)


def room_of_file(path: Path) -> str:
    if not path.is_relative_to(SOURCE):  # the small packages by which Spark finds its sources
        return path.relative_to(SOURCE.parent).parts[0]
    return room_of(".".join(("orbitmq", *path.relative_to(SOURCE).with_suffix("").parts)))


def test_a_room_imports_only_the_rooms_below_it() -> None:
    problems = []
    for path in SOURCES:
        room = room_of_file(path)
        allowed = MAY_IMPORT.get(room, set()) | {room, "__init__"}
        if room not in MAY_IMPORT:
            problems.append(f"{relative(path)}: the room {room} is not in this test's table")
        for line, module in imported_modules(syntax(path)):
            if module == ".":
                problems.append(f"{relative(path)}:{line}: a relative import; write the whole name")
            elif module.split(".")[0] == "orbitmq" and room_of(module) not in allowed:
                problems.append(f"{relative(path)}:{line}: {room} may not import {module}")
    assert not problems, "\n".join(problems)


def test_a_file_holds_one_idea() -> None:
    lengths = {relative(path): len(path.read_text("utf-8").splitlines()) for path in ALL_PYTHON}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_time_chance_and_files_are_parameters() -> None:
    problems = []
    for path in SOURCES:
        if path.is_relative_to(SOURCE) and path.relative_to(SOURCE).as_posix().startswith(OWN_THE_OUTSIDE):
            continue
        for line, name in called_names(syntax(path)):
            known = name in OUTSIDE or name.removeprefix("datetime.") in CLOCKS
            if known or name.split(".")[-1] in FILE_METHODS:
                problems.append(f"{relative(path)}:{line}: {name}() reaches outside; take it as a parameter")
    assert not problems, "\n".join(problems)


def test_no_error_is_swallowed() -> None:
    problems = []
    for path in SOURCES:
        for node in ast.walk(syntax(path)):
            if not isinstance(node, ast.ExceptHandler):
                continue
            broad = node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
            if broad and all(isinstance(statement, ast.Pass) for statement in node.body):
                problems.append(f"{relative(path)}:{node.lineno}: any error is dropped here without a trace")
    assert not problems, "\n".join(problems)


def test_modules_open_the_same_way() -> None:
    problems = []
    for path in SOURCES:
        tree = syntax(path)
        if not ast.get_docstring(tree):
            problems.append(f"{relative(path)} does not say what it is")
        futures = [
            node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"
        ]
        if not futures and len(tree.body) > 1:
            problems.append(f"{relative(path)} lacks `from __future__ import annotations`")
    assert not problems, "\n".join(problems)


def test_nothing_is_left_unfinished_or_tied_to_one_machine() -> None:
    problems = []
    for path in written_files():
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if UNFINISHED.search(line) or MACHINE_PATH.search(line):
                problems.append(f"{relative(path)}:{number}: {line.strip()}")
    assert not problems, "\n".join(problems)


def test_every_feature_is_listed_once_and_names_its_test_or_says_not_yet() -> None:
    rows = FEATURE_ROW.findall((ROOT / "docs" / "features.md").read_text("utf-8"))
    assert sorted(feature for feature, _ in rows) == sorted(FEATURE_IDS)
    shown = {feature: TEST_REFERENCE.findall(cell) + KIT_REFERENCE.findall(cell) for feature, cell in rows}
    assert [feature for feature, cell in rows if not shown[feature] and "not yet" not in cell] == []


def test_every_test_that_a_document_names_exists() -> None:
    problems = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text("utf-8")
        problems += [
            f"{relative(path)} names {name} {function}, which does not exist"
            for name, function in TEST_REFERENCE.findall(text)
            if not has_test(ROOT / name, function)
        ]
        problems += [
            f"{relative(path)} names {suite}:{scenario}, which the kit does not have"
            for suite, scenario in KIT_REFERENCE.findall(text)
            if not kit_has(suite, scenario)
        ]
    assert not problems, "\n".join(problems)


def has_test(path: Path, function: str) -> bool:
    if not path.is_file():
        return False
    defined = {
        node.name for node in ast.walk(syntax(path)) if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    return not function or function in defined


def kit_has(suite: str, scenario: str) -> bool:
    folder = ROOT / "tests" / "interop" / suite.removesuffix("-binary")
    whole_word = re.compile(rf"(?<![\w-]){re.escape(scenario)}(?![\w-])")
    return any(whole_word.search(p.read_text("utf-8", "replace")) for p in folder.rglob("*") if p.is_file())


def written_files() -> list[Path]:
    folders = ("src", "tests", "bench", "scripts", "docs", ".ci")
    inside = [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    top = [path for path in sorted(ROOT.iterdir()) if path.is_file()]
    return [path for path in top + inside if ours(path) and path.suffix in TEXT]
