"""Fills topics quickly: batches over one blocking connection, with a memory of what was sent where."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orbitmq.spark.connection import Connection
from orbitmq.wire.batch import encode_batch
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.properties import encode_properties

BATCH_BYTES = 512 * 1024
FRESH_S = 20.0
IN_FLIGHT = 8


@dataclass(frozen=True)
class Out:
    """A message to send."""

    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)


def numbered(count: int, start: int = 0, *, tag: str = "", size: int = 16) -> list[Out]:
    """Messages that can be told apart."""
    messages = []
    for number in range(start, start + count):
        properties = {"UNIQ_KEY": f"{number:032X}", "KEYS": f"k{number} all", "n": str(number)}
        if tag:
            properties["TAGS"] = tag
        messages.append(Out(b"%010d" % number + b"." * (size - 10), properties))
    return messages


class Topics:
    """A connection to a broker. Close it."""

    def __init__(self, addr: str, *, timeout_s: float = 60.0) -> None:
        self._addr, self._timeout_s = addr, timeout_s
        self._connection = Connection(addr, timeout_s)
        self._used_s = time.monotonic()

    def close(self) -> None:
        self._connection.close()

    def _refresh(self) -> None:
        """Brokers hang up on whoever has been silent for two minutes, which a slow test is."""
        if time.monotonic() - self._used_s > FRESH_S:
            self._connection.close()
            self._connection = Connection(self._addr, self._timeout_s)
        self._used_s = time.monotonic()

    def create(self, topic: str, queues: int) -> None:
        ext = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        self._ok(request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext))

    def delete(self, topic: str) -> None:
        self._ok(request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}))

    def send(
        self, topic: str, queue_id: int, message: Out, *, sys_flag: int = 0, born_ms: int | None = None
    ) -> None:
        text = encode_properties(message.properties).decode()
        self._ok(
            request(RequestCode.SEND_MESSAGE_V2, _ext(topic, queue_id, text, sys_flag, born_ms), message.body)
        )

    def fill(self, topic: str, queue_id: int, messages: Sequence[Out]) -> None:
        """All of them, in order, to one queue."""
        self._refresh()
        waiting: list[int] = []
        for body in _bodies(messages):
            ext = {**_ext(topic, queue_id, "", 0, None), "m": "true"}
            waiting += self._connection.send(request(RequestCode.SEND_BATCH_MESSAGE, ext, body))
            if len(waiting) >= IN_FLIGHT:
                self._check(waiting.pop(0))
        for opaque in waiting:
            self._check(opaque)

    def _ok(self, command: Command) -> None:
        self._refresh()
        self._check(self._connection.send(command)[0])

    def _check(self, opaque: int) -> None:
        answer = self._connection.receive(opaque)
        assert answer.code == ResponseCode.SUCCESS, f"{answer.code}: {answer.remark}"


def _bodies(messages: Sequence[Out]) -> list[bytes]:
    bodies: list[bytes] = []
    part: list[tuple[int, bytes, bytes]] = []
    size = 0
    for message in messages:
        entry = (0, message.body, encode_properties(message.properties))
        part.append(entry)
        size += len(entry[1]) + len(entry[2]) + 32
        if size >= BATCH_BYTES:
            bodies.append(encode_batch(part))
            part, size = [], 0
    if part:
        bodies.append(encode_batch(part))
    return bodies


def _ext(topic: str, queue_id: int, properties: str, sys_flag: int, born_ms: int | None) -> dict[str, str]:
    born = time.time_ns() // 1_000_000 if born_ms is None else born_ms
    return {
        "a": "filler",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": str(sys_flag),
        "g": str(born),
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
    }
