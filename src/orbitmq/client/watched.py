"""Messages whose `async with` block interceptors see; plain ones do not pay for that."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from orbitmq.client.message import Message
from orbitmq.client.tracing import Interceptors


def watched_message(interceptors: Interceptors, group: str) -> type[Message]:
    """The kind of message a consumer with these interceptors hands out."""
    if not interceptors:
        return Message

    class WatchedMessage(Message):
        __slots__ = ("_watch",)

        _watch: AbstractContextManager[None]

        async def __aenter__(self) -> Self:
            await super().__aenter__()
            self._watch = interceptors.handling(self, group)
            self._watch.__enter__()
            return self

        async def __aexit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> bool:
            self._watch.__exit__(kind, error, trace)
            return await super().__aexit__(kind, error, trace)

    return WatchedMessage
