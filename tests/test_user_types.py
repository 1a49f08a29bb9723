"""A user's program under a strict type checker: examples and tutorial are clean, wrong use is found before it runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_tutorial import files_of_the_tutorial

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LIMIT_S = 180

# Wrong in ways that the types alone tell, and right in the last line.
WRONG = """\
import orbitmq


async def main() -> None:
    async with orbitmq.connect(9876) as mq:
        producer = mq.producer("shop")
        await producer.send(b"orders", b"body")
        await producer.send("orders", b"body", delivery_after=5)
        receipt = await producer.send("orders", b"body", deliver_after=5)
        print(receipt.message_id)
        async with mq.consumer("billing", "orders") as inbox:
            async for msg in inbox:
                print(msg.bodies)
        print(receipt.msg_id)
"""
WRONG_LINES = [5, 7, 8, 10, 13]

Finding = tuple[str, int, str]
"""File, line and text of what a checker does not like."""


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT / "src"), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def mypy(folder: Path) -> list[Finding]:
    options = ["--strict", "--config-file", os.devnull, "--cache-dir", str(ROOT / ".mypy_cache" / "user")]
    report = run([sys.executable, "-m", "mypy", *options, "."], folder)
    files = len(list(folder.glob("*.py")))
    assert re.search(rf"checked {files} source files", report), report
    found = re.findall(r"^(\S+\.py):(\d+): error: (.*)$", report, re.MULTILINE)
    return [(name, int(line), text) for name, line, text in found]


def pyright(folder: Path) -> list[Finding]:
    settings = {"include": ["."], "extraPaths": [str(ROOT / "src")], "typeCheckingMode": "strict"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    report = json.loads(run([PYRIGHT or "", "--pythonpath", sys.executable, "--outputjson"], folder))
    assert report["summary"]["filesAnalyzed"] == len(list(folder.glob("*.py")))
    return [
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["message"])
        for one in report["generalDiagnostics"]
    ]


# Needs Node, which not everybody has who has Python; mypy comes with the tools of this project.
PYRIGHT = shutil.which(
    "pyright", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
)
CHECKERS = [mypy, pyright] if PYRIGHT and shutil.which("node") else [mypy]


@pytest.fixture(scope="module", params=CHECKERS, ids=lambda check: check.__name__)
def findings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Finding]:
    """One run over everything, because a checker needs longer to start than to look at ten files more."""
    folder = tmp_path_factory.mktemp("user")
    for example in EXAMPLES:
        shutil.copy(example, folder)
    for name, program in files_of_the_tutorial().items():
        (folder / name).write_text(program, "utf-8")
    (folder / "wrong.py").write_text(WRONG, "utf-8")
    found: list[Finding] = request.param(folder)
    return found


def test_examples_and_tutorial_are_clean_under_strict_rules(findings: list[Finding]) -> None:
    assert len(EXAMPLES) >= 6
    found = [f"{name}:{line}: {text}" for name, line, text in findings if name != "wrong.py"]
    assert not found, "\n".join(found)


def test_wrong_use_is_found_by_the_checker(findings: list[Finding]) -> None:
    assert sorted({line for name, line, _ in findings if name == "wrong.py"}) == WRONG_LINES, findings
