"""OrbitMQ: a message queue compatible with Apache RocketMQ on the wire and on disk.

What flows in: nothing at import time. Importing `orbitmq` loads no room, so that a tool that only
needs the version, or one room, never pays for the others. Rooms are imported by their own names.

The rooms, and what each may import, are described in `docs/ARCHITECTURE.md` and kept by
`tests/test_tidy.py`.
"""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
