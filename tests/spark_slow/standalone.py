"""A real Spark cluster on this machine, started from the PySpark package: one master and some workers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from orbitmq.spark.java import prepare_java
from tests.support.server_process import free_port

ROOT = Path(__file__).resolve().parents[2]
READY_S = 240.0
# Each Java lives for seconds: its second compiler would take more time than it saves.
SHORT_LIVED_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def environment() -> dict[str, str]:
    """For drivers and workers: our Java, our interpreter, and this package where Python looks for packages."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    prepare_java(env)
    env["PYSPARK_PYTHON"] = env["PYSPARK_DRIVER_PYTHON"] = sys.executable
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    env["SPARK_LOCAL_IP"] = "127.0.0.1"
    env["JAVA_TOOL_OPTIONS"] = SHORT_LIVED_JAVA
    return env


class StandaloneCluster:
    """Ready when entered; every process is stopped by its own id when left."""

    def __init__(self, directory: Path, workers: int = 2) -> None:
        self._directory = directory
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[Path] = []
        self.master = f"spark://127.0.0.1:{free_port()}"

    def __enter__(self) -> Self:
        port = self.master.rpartition(":")[2]
        try:
            self._start("master", "master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0")
            for number in range(self._workers):
                work = str(self._directory / f"work{number}")
                options = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--work-dir", work)
                self._start(f"worker{number}", "worker.Worker", self.master, "--webui-port", "0", *options)
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        self._processes.clear()

    def log(self) -> str:
        return "\n".join(path.read_text("utf-8", "replace")[-4000:] for path in self._logs)

    def _start(self, name: str, role: str, *options: str) -> None:
        import pyspark

        script = Path(pyspark.__file__).parent / "bin" / "spark-class"
        path = self._directory / f"{name}.log"
        self._logs.append(path)
        with path.open("wb") as log:
            command = [str(script), f"org.apache.spark.deploy.{role}", *options]
            self._processes.append(
                subprocess.Popen(command, env=environment(), stdout=log, stderr=subprocess.STDOUT)
            )

    def _wait(self) -> None:
        deadline = time.monotonic() + READY_S
        while self.log().count("Successfully registered with master") < self._workers:
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                raise AssertionError(f"the cluster did not start:\n{self.log()}")
            time.sleep(0.2)
