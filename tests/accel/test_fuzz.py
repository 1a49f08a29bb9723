"""The fuzzer, against the accelerator as it is and against one built with sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from orbitmq import accel
from tests.support.server_process import SOURCE

C_SOURCE = SOURCE / "orbitmq" / "accel" / "_accel.c"
ROOT = SOURCE.parent
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")


def fuzz(extension: str, seconds: float, **env: str) -> str:
    """Runs it in a process of its own, with Python's memory where a sanitizer sees every object."""
    command = [sys.executable, "-m", "tests.accel.fuzz", extension, str(seconds), "1"]
    paths = os.pathsep.join((str(SOURCE), str(ROOT)))
    ended = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONMALLOC": "malloc", **env},
        capture_output=True,
        text=True,
        timeout=seconds * 4 + 60,
        check=False,
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    return ended.stdout


def test_garbage_does_no_harm() -> None:
    if accel.stage_frames is None:
        pytest.skip("the accelerator is not built")
    from orbitmq.accel import _accel

    path = _accel.__file__
    assert path is not None
    assert "frames were taken" in fuzz(path, 1.5)


@pytest.mark.slow
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc to build the sanitized copy with")
    asan = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(asan):
        pytest.skip("gcc comes without its address sanitizer")
    target = tmp_path / "_accel.so"
    include = sysconfig.get_paths()["include"]
    flags = ["-g", "-O1", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-fPIC", "-shared"]
    subprocess.run(
        [compiler, *flags, *SANITIZERS, f"-I{include}", str(C_SOURCE), "-o", str(target)], check=True
    )
    assert "frames were taken" in fuzz(str(target), 15, LD_PRELOAD=asan, ASAN_OPTIONS="detect_leaks=0")
