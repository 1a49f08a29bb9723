"""Cores that stay awake while figures are taken.

A core of a virtual machine that has nothing to do goes back to the host, and comes again when the host finds time.
Where client and broker wait for each other message by message, that takes longer than all they do, and differs from
minute to minute: such rows tell about the host. Linux lets a program ask for cores that wait without sleeping (power
management QoS); it is what `tuned`'s latency profiles do. Waiting counts for no process, though the machine may count
part of it as work. It holds for everybody alike, and until the file is closed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEVICE = Path("/dev/cpu_dma_latency")
_NO_LATENCY = bytes(4)


@contextmanager
def awake_cores(device: Path = DEVICE) -> Iterator[bool]:
    """Whether the system has agreed; otherwise the figures are what the machine makes of them."""
    try:
        asked = os.open(device, os.O_WRONLY)
    except OSError:
        yield False
        return
    try:
        try:
            agreed = os.write(asked, _NO_LATENCY) == len(_NO_LATENCY)
        except OSError:
            agreed = False
        yield agreed
    finally:
        os.close(asked)
