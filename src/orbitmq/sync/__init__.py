"""The same client for blocking code: scripts, Flask, Celery, notebooks.

    import orbitmq.sync

    with orbitmq.sync.connect("127.0.0.1:9876") as mq:
        mq.producer("orders-app").send("orders", b"...", tag="paid")
        with mq.consumer("billing", "orders") as inbox:
            for msg in inbox:
                with msg:                       # leaves: ack; raises: retried with back-off
                    handle(msg.body)

In:   calls from any number of threads, whether or not they run an event loop of their own.
Out:  what the asynchronous twin gives. There is no second implementation: everything runs in the asynchronous client,
      on one private thread per `Client`; handlers of consumers run in a thread pool.

A process that forks (Celery, gunicorn with preload) keeps its clients: producers and the administration open anew in
the child with their first use. What the parent was consuming or reading stays the parent's, and says so when used.

Imports `client` and `loop_thread`.
"""

from __future__ import annotations

from orbitmq.sync.client import Administration, Client, connect
from orbitmq.sync.consumer import Consumer
from orbitmq.sync.engine import Forked
from orbitmq.sync.message import Message
from orbitmq.sync.producer import Producer, Transaction
from orbitmq.sync.reader import Reader

__all__ = [
    "Administration",
    "Client",
    "Consumer",
    "Forked",
    "Message",
    "Producer",
    "Reader",
    "Transaction",
    "connect",
]
