"""Reading a topic in blocking code."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from orbitmq.client import reading
from orbitmq.client.errors import Closed
from orbitmq.client.message import Message
from orbitmq.client.positions import Position
from orbitmq.sync.engine import Engine, Engines, Forked, blocking, in_batches
from orbitmq.wire.fastjson import MessageQueue


class Reader:
    """As `orbitmq.Reader`. Use it as a context manager, from one thread at a time."""

    def __init__(self, engines: Engines, topic: str, **options: Any) -> None:
        self.topic = topic
        self._engines = engines
        self._options = options
        self._engine: Engine | None = None
        self._twin: reading.Reader | None = None

    def _use(self) -> tuple[Engine, reading.Reader]:
        if self._engine is None or self._twin is None:
            raise Closed(
                f"the reader of '{self.topic}' is not open",
                hint="use it inside `with mq.reader(...) as reader`",
            )
        if self._engine.forked:
            raise Forked(
                f"the reader of '{self.topic}' was opened before this process was forked",
                hint="open readers in the child, after the fork",
            )
        return self._engine, self._twin

    def __enter__(self) -> Self:
        self._engine = engine = self._engines.current()

        async def opened() -> reading.Reader:
            return await engine.client.reader(self.topic, **self._options).__aenter__()

        self._twin = engine.run(opened())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closing twice does no harm."""
        engine, twin = self._engine, self._twin
        self._engine = self._twin = None
        if engine is not None and twin is not None and not engine.forked and not self._engines.closed:
            engine.run(twin.aclose())

    read = blocking(reading.Reader.read)
    seek = blocking(reading.Reader.seek)
    ends = blocking(reading.Reader.ends)

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """The next offset of each queue: what was handed out lies before it."""
        engine, twin = self._use()

        async def look() -> dict[MessageQueue, int]:
            return twin.positions

        return engine.run(look())

    def __iter__(self) -> Iterator[Message]:
        """Everything, and then what arrives: it has no end of its own. Messages come a page at a time."""
        while True:
            yield from self.read(max_wait=3600)

    def range(self, start: Position, end: Position) -> Iterator[Message]:
        """The messages from `start` up to (not including) `end`, merged by the time they were stored."""
        engine, twin = self._use()
        return in_batches(engine, lambda: twin.range(start, end))
