"""OrbitMQ: a message queue compatible with Apache RocketMQ on the wire and on disk.

    import orbitmq

    async with orbitmq.connect("127.0.0.1:9876") as mq:
        await mq.producer("orders-app").send("orders", b"...")
        async with mq.consumer("billing", "orders") as inbox:
            async for msg in inbox:
                async with msg:
                    await handle(msg.body)

What flows in: nothing at import time. Importing `orbitmq` loads no room; each public name loads what it needs when it
is first used, so that a tool that only needs the version, or one room, never pays for the others.

`orbitmq.sync` has the same names for blocking code, `orbitmq.testing` a server for tests. The rooms, and what each may
import, are described in `docs/ARCHITECTURE.md` and kept by `tests/test_tidy.py`.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers know the name; importing it would load `typing` for nothing
if TYPE_CHECKING:
    from orbitmq.client.administration import Administration as Administration
    from orbitmq.client.administration import DeadLetter as DeadLetter
    from orbitmq.client.app import App as App
    from orbitmq.client.client import Client as Client
    from orbitmq.client.client import connect as connect
    from orbitmq.client.consumer import Consumer as Consumer
    from orbitmq.client.dedup import Dedup as Dedup
    from orbitmq.client.errors import BadRequest as BadRequest
    from orbitmq.client.errors import Closed as Closed
    from orbitmq.client.errors import NotFound as NotFound
    from orbitmq.client.errors import OrbitMQError as OrbitMQError
    from orbitmq.client.errors import Refused as Refused
    from orbitmq.client.errors import Unreachable as Unreachable
    from orbitmq.client.lag import Lag as Lag
    from orbitmq.client.lag import Unknown as Unknown
    from orbitmq.client.message import Message as Message
    from orbitmq.client.producer import Producer as Producer
    from orbitmq.client.reading import Reader as Reader
    from orbitmq.client.receipt import Receipt as Receipt
    from orbitmq.client.tracing import Interceptor as Interceptor
    from orbitmq.wire.fastjson import MessageQueue as MessageQueue
else:
    # Hidden from type checkers: for them a name that is not listed above does not exist.
    _HOMES = {
        "Administration": "orbitmq.client.administration",
        "App": "orbitmq.client.app",
        "BadRequest": "orbitmq.client.errors",
        "Client": "orbitmq.client.client",
        "Closed": "orbitmq.client.errors",
        "Consumer": "orbitmq.client.consumer",
        "DeadLetter": "orbitmq.client.administration",
        "Dedup": "orbitmq.client.dedup",
        "Interceptor": "orbitmq.client.tracing",
        "Lag": "orbitmq.client.lag",
        "Message": "orbitmq.client.message",
        "MessageQueue": "orbitmq.wire.fastjson",
        "NotFound": "orbitmq.client.errors",
        "OrbitMQError": "orbitmq.client.errors",
        "Producer": "orbitmq.client.producer",
        "Reader": "orbitmq.client.reading",
        "Receipt": "orbitmq.client.receipt",
        "Refused": "orbitmq.client.errors",
        "Unknown": "orbitmq.client.lag",
        "Unreachable": "orbitmq.client.errors",
        "connect": "orbitmq.client.client",
    }
    _MODULES = frozenset({"sync", "testing"})

    def __getattr__(name: str) -> object:
        import importlib

        if name in _MODULES:
            return importlib.import_module(f"orbitmq.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'orbitmq' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES, *_MODULES})


__all__ = [
    "Administration",
    "App",
    "BadRequest",
    "Client",
    "Closed",
    "Consumer",
    "DeadLetter",
    "Dedup",
    "Interceptor",
    "Lag",
    "Message",
    "MessageQueue",
    "NotFound",
    "OrbitMQError",
    "Producer",
    "Reader",
    "Receipt",
    "Refused",
    "Unknown",
    "Unreachable",
    "__version__",
    "connect",
]
