"""Networks that can be cut: shown with plain sockets before anything is believed about brokers in them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.chaos.capability import PRIVILEGED_WANTED, require_privileges
from tests.chaos.network import Network

# Answers who connects, and prints what came by datagram, which needs no answer to arrive.
LISTEN = """
import socket, threading
server = socket.create_server(("0.0.0.0", 7000))
datagrams = socket.socket(type=socket.SOCK_DGRAM)
datagrams.bind(("0.0.0.0", 7001))
def tell():
    while True:
        print(datagrams.recv(100).decode(), flush=True)
threading.Thread(target=tell, daemon=True).start()
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(b"yes")
    connection.close()
"""
ASK = """
import socket, sys
socket.socket(type=socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), (sys.argv[1], 7001))
try:
    print(socket.create_connection((sys.argv[1], 7000), timeout=0.5).recv(3).decode())
except OSError:
    print("no")
"""
EVERYBODY = {"ab", "ba", "ac", "ca", "bc", "cb"}


class Listener:
    def __init__(self, network: Network, node: str) -> None:
        command = [*network.under(node), sys.executable, "-c", LISTEN]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.heard: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self.heard.append(line.strip())

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()


class Trio:
    """Three nodes, a listener on each."""

    def __init__(self, network: Network) -> None:
        self.network = network
        for node in "abc":
            network.add(node)
        self.listeners = {node: Listener(network, node) for node in "abc"}
        for listener in self.listeners.values():
            eventually(lambda heard=listener.heard: heard == ["ready"], "a listener")  # type: ignore[misc]

    def can_reach(self) -> set[str]:
        """Pairs of asker and answerer."""
        asking = {}
        for pair in EVERYBODY:
            command = [*self.network.under(pair[0]), sys.executable, "-c", ASK]
            command += [self.network.address(pair[1]), pair]
            asking[pair] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        return {pair for pair, asker in asking.items() if asker.communicate(timeout=30)[0] == "yes\n"}

    def stop(self) -> None:
        for listener in self.listeners.values():
            listener.stop()


def eventually(condition: Callable[[], bool], what: str, limit_s: float = 20) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.02)


@pytest.fixture
def trio() -> Iterator[Trio]:
    require_privileges()
    with Network() as network:
        made = Trio(network)
        try:
            yield made
        finally:
            made.stop()


if PRIVILEGED_WANTED:

    def test_who_is_cut_off_reaches_only_his_own_side(trio: Trio) -> None:
        assert trio.can_reach() == EVERYBODY
        trio.network.part(["a"])
        assert trio.can_reach() == {"bc", "cb"}
        trio.network.part(["a", "b"])
        assert trio.can_reach() == {"ab", "ba"}
        trio.network.heal()
        assert trio.can_reach() == EVERYBODY

    def test_the_deaf_are_heard_and_hear_nothing_until_they_are_healed(trio: Trio) -> None:
        assert trio.can_reach() == EVERYBODY
        for listener in trio.listeners.values():
            listener.heard.clear()
        trio.network.deafen("a")
        assert trio.can_reach() == {"bc", "cb"}
        eventually(lambda: "ab" in trio.listeners["b"].heard, "b hears a")
        assert trio.listeners["a"].heard == []
        trio.network.heal()
        eventually(lambda: trio.can_reach() == EVERYBODY, "healed")
