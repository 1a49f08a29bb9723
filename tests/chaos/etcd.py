"""etcd in processes of its own: Debian's etcd-server, one or three nodes."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from scripts.services import program

START_LIMIT_S = 30.0


class EtcdNode:
    """Ports and data stay the same over `kill` and `start`."""

    def __init__(
        self, name: str, client_addr: str, peer_addr: str, directory: Path, under: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.client_addr = client_addr
        self.peer_addr = peer_addr
        self._directory = directory
        self._under = list(under)
        self._peers = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self._directory / "log"

    def start(self, members: Sequence[EtcdNode] = ()) -> None:
        """`members` is the whole cluster at its first start."""
        assert self._process is None, f"{self.name} is running already"
        binary = program("etcd")
        assert binary, (
            "etcd is not installed: `python3 -m scripts.services install` does it (Debian: etcd-server)"
        )
        self._directory.mkdir(exist_ok=True)
        if members:
            self._peers = ",".join(f"{node.name}=http://{node.peer_addr}" for node in members)
        client, peer = f"http://{self.client_addr}", f"http://{self.peer_addr}"
        command = [*self._under, binary, "--name", self.name, "--data-dir", str(self._directory / "data")]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", self._peers, "--initial-cluster-state", "new"]
        # A fast disk is not what is tested, and three of them share one.
        command += ["--heartbeat-interval", "100", "--election-timeout", "1000", "--unsafe-no-fsync"]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def wait_ready(self) -> None:
        """Until it is part of a cluster that can decide."""
        deadline = time.monotonic() + START_LIMIT_S
        question = [*self._under, program("etcdctl") or "etcdctl", "--endpoints", self.client_addr]
        question += ["endpoint", "health"]
        while subprocess.run(question, capture_output=True, timeout=START_LIMIT_S).returncode:
            assert self._process is not None and self._process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, f"{self.name} is not ready:\n{self.log.read_text()[-3000:]}"
            time.sleep(0.1)

    def leads(self) -> bool:
        """Whether it is the one that decides."""
        if self._process is None:
            return False
        question = [*self._under, program("etcdctl") or "etcdctl", "--endpoints", self.client_addr]
        question += ["endpoint", "status", "--write-out", "json"]
        done = subprocess.run(question, capture_output=True, text=True, timeout=START_LIMIT_S)
        if done.returncode:
            return False
        status = json.loads(done.stdout)[0]["Status"]
        return bool(status["leader"] == status["header"]["member_id"])

    def kill(self) -> None:
        assert self._process is not None, f"{self.name} is not running"
        self._process.kill()
        self._process.wait()
        self._process = None

    def end(self) -> None:
        if self._process is not None:
            self.kill()
