"""How a client is called: its address, and the id by which brokers tell it from others."""

from __future__ import annotations

import socket
from functools import lru_cache

from orbitmq.client.errors import BadRequest


@lru_cache(1)
def local_ip() -> str:
    """The address this host uses towards others; no packet is sent to learn it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def make_client_id(ip: str, pid: int, unique: int, instance: str | None = None) -> str:
    """`ip@instance`. Without an instance each client gets a name of its own: two with one id would be taken for
    one consumer, and each would believe that it owns all queues of the other.
    """
    if instance is None:
        return f"{ip}@{pid}#{unique:x}"
    if not instance or any(mark.isspace() for mark in instance):
        raise BadRequest(
            f"{instance!r} is not an instance name", hint="use letters and digits, no blanks; or leave it out"
        )
    return f"{ip}@{instance}"
