"""Interceptors: what a program wants to see of every send and every handled message.

An interceptor is a subclass of `Interceptor` that overrides what it needs. It is called in the event loop and
must not block; an error in it is logged and never harms the message.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orbitmq.client.client import Client
    from orbitmq.client.receipt import Receipt

log = logging.getLogger("orbitmq.client")


@dataclass(slots=True)
class Sending:
    """One message on its way out. Properties that `before_send` adds travel with it."""

    group: str
    topic: str
    body: bytes
    tag: str | None
    keys: Sequence[str]
    properties: dict[str, str]
    born_ms: int
    delayed: bool = False
    transactional: bool = False
    msg_id: str | None = None
    """None for a message of a batch, whose id is made when the batch is: see the receipt."""
    notes: dict[Any, Any] = field(default_factory=dict)
    """A place for interceptors to keep something between the two calls."""


@dataclass(slots=True)
class Settling:
    """The end of a transaction's message."""

    group: str
    topic: str
    msg_id: str
    offset_msg_id: str
    state: str
    from_check: bool


class Interceptor:
    """Overrides what it is interested in; everything else does nothing."""

    def attach(self, client: Client) -> None:
        """Called once, when the client is made."""

    def before_send(self, sending: Sending) -> None:
        """May change `sending.properties`."""

    def after_send(self, sending: Sending, receipt: Receipt | None, error: BaseException | None) -> None:
        """Either a receipt or an error; neither for a one-way send."""

    def after_settling(self, settling: Settling) -> None:
        """A transaction's message was committed or rolled back."""

    @contextmanager
    def handling(self, msg: Any, group: str) -> Iterator[None]:
        """Around the handling of one message; an exception of the handler passes through."""
        yield


class Interceptors:
    """Several as one. Errors in them are logged; what they watch goes on."""

    def __init__(self, members: Sequence[Interceptor]) -> None:
        self.members = tuple(members)

    def __bool__(self) -> bool:
        return bool(self.members)

    def before_send(self, sending: Sending) -> None:
        for member in self.members:
            try:
                member.before_send(sending)
            except Exception:
                log.exception("%s.before_send failed", type(member).__name__)

    def after_send(self, sending: Sending, receipt: Receipt | None, error: BaseException | None) -> None:
        for member in reversed(self.members):
            try:
                member.after_send(sending, receipt, error)
            except Exception:
                log.exception("%s.after_send failed", type(member).__name__)

    def after_settling(self, settling: Settling) -> None:
        for member in reversed(self.members):
            try:
                member.after_settling(settling)
            except Exception:
                log.exception("%s.after_settling failed", type(member).__name__)

    def handling(self, msg: Any, group: str) -> AbstractContextManager[None]:
        """Enter it around the handler. An interceptor that fails to start is left out."""
        stack = ExitStack()
        for member in self.members:
            try:
                stack.enter_context(member.handling(msg, group))
            except Exception:
                log.exception("%s.handling failed", type(member).__name__)
        return _Quiet(stack)


class _Quiet(AbstractContextManager[None]):
    """Leaves the stack; only the handler's own exception gets out, and never a swallowed one."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def __enter__(self) -> None:
        return None

    def __exit__(self, *details: Any) -> None:
        try:
            self._stack.__exit__(*details)
        except BaseException as error:
            if error is not details[1]:
                log.exception("an interceptor failed after handling")
