"""Sending in blocking code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from orbitmq.client import producer, transactions
from orbitmq.client.check_back import TxState, Verdict
from orbitmq.client.errors import BadRequest, Closed
from orbitmq.client.message import Message
from orbitmq.client.receipt import Receipt
from orbitmq.sync.engine import Engine, Engines, Forked, blocking

Check = Callable[[Message], Verdict]
"""Asked what became of a transaction: True to commit, False to roll back, None to be asked later."""
C = TypeVar("C", bound=Check)


class Producer:
    """As `orbitmq.Producer`. Any number of threads may share it, and a forked child may go on using it."""

    def __init__(self, engines: Engines, group: str, options: dict[str, Any]) -> None:
        self.group = group
        self._engines = engines
        self._options = options
        self._check: Check | None = options.pop("check", None)
        self._made: tuple[Engine, producer.Producer] | None = None

    def _use(self) -> tuple[Engine, producer.Producer]:
        engine = self._engines.current()
        made = self._made
        if made is not None and made[0] is engine:
            return made
        with self._engines.lock:
            if self._made is None or self._made[0] is not engine:
                self._made = (engine, engine.run(self._make(engine)))
            return self._made

    async def _make(self, engine: Engine) -> producer.Producer:
        twin = engine.client.producer(self.group, **self._options)
        if self._check is not None:
            twin.on_check(_in_thread(self._check))
        return twin

    send = blocking(producer.Producer.send)
    send_many = blocking(producer.Producer.send_many)
    send_oneway = blocking(producer.Producer.send_oneway)
    flush = blocking(producer.Producer.flush)
    cancel = blocking(producer.Producer.cancel)
    request = blocking(producer.Producer.request)
    reply = blocking(producer.Producer.reply)

    def post(self, topic: str, body: bytes, **options: Any) -> Future[Receipt]:
        """Hands over one message and goes on; the future that is given back gets its receipt. See `flush`."""
        engine, twin = self._use()
        receipt: Future[Receipt] = Future()

        async def hand_over() -> None:
            answer = await twin.post(topic, body, **options)
            answer.add_done_callback(lambda done: _pass_on(done, receipt))

        engine.run(hand_over())
        return receipt

    def transaction(self, topic: str | None = None, body: bytes | None = None, **options: Any) -> Transaction:
        """`with producer.transaction(...) as tx`: one or several messages, all or none; see `orbitmq.Producer`."""
        return Transaction(self, topic, body, options)

    def on_check(self, handler: C) -> C:
        """Registers who answers brokers about transactions this process does not remember; usable as a decorator.

        It is called in a thread with the prepared message and returns True (commit), False (roll back) or None (later).
        """
        self._check = handler
        engine, twin = self._use()

        async def register() -> None:
            twin.on_check(_in_thread(handler))

        engine.run(register())
        return handler

    def __enter__(self) -> Self:
        self._use()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Tells the brokers. The client and its other producers stay open; the next send opens this one again."""
        with self._engines.lock:
            made, self._made = self._made, None
        if made is not None and not made[0].forked and not self._engines.closed:
            made[0].run(made[1].aclose())


class Transaction:
    """Messages that are seen together, or not at all. Use it as a context manager."""

    def __init__(
        self, owner: Producer, topic: str | None, body: bytes | None, options: dict[str, Any]
    ) -> None:
        self._owner = owner
        self._first = (topic, body, options)
        self._opened: tuple[Engine, transactions.Transaction] | None = None

    def _use(self) -> tuple[Engine, transactions.Transaction]:
        if self._opened is None:
            raise BadRequest(
                "the transaction is not entered yet", hint="use it as `with producer.transaction() as tx`"
            )
        if self._opened[0].forked:
            raise Forked(
                "the transaction was opened before this process was forked, and the parent will end it",
                hint="open transactions in the child, after the fork",
            )
        return self._opened

    def __enter__(self) -> Self:
        engine, twin = self._owner._use()
        topic, body, options = self._first

        async def enter() -> transactions.Transaction:
            return await twin.transaction(topic, body, **options).__aenter__()

        self._opened = (engine, engine.run(enter()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        engine, twin = self._use()
        engine.run(twin.__aexit__(kind, error, trace))

    send = blocking(transactions.Transaction.send)

    @property
    def id(self) -> str:
        """Write it into the database with the business change: the check handler looks for it there."""
        return self._use()[1].id

    @property
    def receipts(self) -> list[Receipt]:
        return list(self._use()[1].receipts)

    @property
    def state(self) -> TxState:
        return self._use()[1].state

    def rollback(self) -> None:
        """Leaves the block normally and rolls back all the same."""
        self._use()[1].rollback()


def _pass_on(answer: asyncio.Future[Receipt], receipt: Future[Receipt]) -> None:
    if answer.cancelled():
        receipt.set_exception(Closed("the client was closed before the message was answered"))
    elif (error := answer.exception()) is not None:
        receipt.set_exception(error)
    else:
        receipt.set_result(answer.result())


def _in_thread(handler: Check) -> Callable[[Message], Any]:
    """Check handlers look into databases: they may block, so the loop does not wait for them."""

    async def ask(message: Message) -> Verdict:
        return await asyncio.to_thread(handler, message)

    return ask
