"""What happened in a run, as its load wrote it down: who tried to send what, what was answered, what arrived.

One JSON array per line. All times are of the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

SEND_OK = "SEND_OK"


class Queue(NamedTuple):
    topic: str
    broker: str
    """The name of the group, not of one process: its queues are the same on every replica."""
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.number}"


class Attempt(NamedTuple):
    at: float
    key: str
    sender: str
    resends: bool = False
    """Its client may send it again by itself, so that it may be stored more than once without the broker's doing."""
    waits: bool = False
    """It waits elsewhere for its time or its commit: its acknowledgement names no place where consumers find it."""


class Answer(NamedTuple):
    """An attempt that is over. Without an answer `status` says why, and nobody knows whether it was stored."""

    at: float
    key: str
    status: str
    queue: Queue | None = None
    offset: int = -1


class Delivery(NamedTuple):
    at: float
    key: str
    queue: Queue
    offset: int
    consumer: str
    group: str = ""


class Made(NamedTuple):
    """A topic or group that a tool was told is there."""

    at: float
    kind: str
    name: str


class Event(NamedTuple):
    """Something done to the cluster."""

    at: float
    what: str


@dataclass
class History:
    attempts: list[Attempt] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def acknowledged(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.status == SEND_OK]

    def take(self, line: str) -> None:
        kind, at, *rest = json.loads(line)
        if kind == "try":
            self.attempts.append(Attempt(at, *rest))
        elif kind == "end":
            key, status, queue, offset = rest
            self.answers.append(Answer(at, key, status, Queue(*queue) if queue else None, offset))
        elif kind == "got":
            key, queue, *others = rest
            self.deliveries.append(Delivery(at, key, Queue(*queue), *others))
        elif kind == "made":
            self.made.append(Made(at, *rest))
        elif kind == "did":
            self.events.append(Event(at, *rest))
        else:
            raise ValueError(f"a history has no lines of kind {kind!r}")


class Recorder:
    """Writes a history line by line. What is written is in the file at once: a run that hangs can be looked at."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a", buffering=1, encoding="utf-8")

    def attempt(self, attempt: Attempt) -> None:
        self._line("try", *attempt)

    def answer(self, answer: Answer) -> None:
        self._line("end", *answer)

    def delivery(self, delivery: Delivery) -> None:
        self._line("got", *delivery)

    def made(self, made: Made) -> None:
        self._line("made", *made)

    def event(self, event: Event) -> None:
        self._line("did", *event)

    def close(self) -> None:
        self._file.close()

    def _line(self, kind: str, *fields: object) -> None:
        self._file.write(json.dumps((kind, *fields)) + "\n")


def load_history(paths: Iterable[Path]) -> History:
    """Of several writers together, in the order of time."""
    history = History()
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                history.take(line)
    for events in (history.attempts, history.answers, history.deliveries, history.made, history.events):
        events.sort()
    return history
