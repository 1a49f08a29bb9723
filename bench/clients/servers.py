"""The brokers of the other clients, on free ports and temporary directories, stopped by their process id."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.clients.load import QUEUES
from scripts.serving import free_port

READY_LIMIT_S = 60.0
STOP_LIMIT_S = 30.0
KAFKA_VERSION = "3.9.1"
KAFKA_HEAP = "1g"
KAFKA_POM = Path(__file__).resolve().parent / "kafka" / "pom.xml"


class CannotServe(RuntimeError):
    """A broker is not installed here or did not start; the text says what to do."""


class ForeignServer:
    """A process that is ready when its port accepts connections."""

    name = ""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.pid = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def addr(self) -> str:
        return f"127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """What to run, after everything it needs has been prepared."""
        raise CannotServe("a server without a command")

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        command = self.command()
        log = self.directory / "output.log"
        with log.open("wb") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        self.pid = self._process.pid
        deadline = time.monotonic() + READY_LIMIT_S
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._stop()
                raise CannotServe(f"{self.name} did not start:\n{log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _accepts(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Nats(ForeignServer):
    name = "nats-server"

    def command(self) -> list[str]:
        program = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
        if program is None:
            raise CannotServe("nats-server is not installed; Debian has it as the package nats-server")
        store = str(self.directory / "store")
        return [program, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", store]


class Kafka(ForeignServer):
    """One process that is broker and controller; its jars come from Maven Central at the first use."""

    name = "Kafka"

    def command(self) -> list[str]:
        java = ["java", f"-Xms{KAFKA_HEAP}", f"-Xmx{KAFKA_HEAP}", "-cp", f"{kafka_jars()}/*"]
        settings = self.directory / "server.properties"
        settings.write_text("\n".join(f"{name}={value}" for name, value in self._settings().items()) + "\n")
        cluster = "orbitmqBenchClusterId0"
        made = subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)],
            capture_output=True,
            text=True,
            check=False,
            timeout=READY_LIMIT_S,
        )
        if made.returncode != 0:
            raise CannotServe(f"Kafka's directory could not be prepared:\n{made.stdout}{made.stderr}")
        return [*java, "kafka.Kafka", str(settings)]

    def _settings(self) -> dict[str, str | int | Path]:
        controller = free_port()
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.directory / "store",
            "num.partitions": QUEUES,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
        }


def kafka_jars() -> Path:
    build = Path(os.environ.get("BUILD") or Path.home() / ".cache" / "orbitmq-bench")
    jars = build / f"kafka-{KAFKA_VERSION}"
    if not (jars / ".done").exists():
        for program in ("java", "mvn"):
            if shutil.which(program) is None:
                raise CannotServe(f"{program} is not installed; Kafka needs Java and Maven")
        fetch = ["mvn", "-q", "-B", "-f", str(KAFKA_POM), "dependency:copy-dependencies"]
        fetch += [f"-Dkafka.version={KAFKA_VERSION}", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        if subprocess.run(fetch, check=False, timeout=600).returncode != 0:
            raise CannotServe("Kafka's jars could not be fetched; Maven's reason is above")
        (jars / ".done").touch()
    return jars
