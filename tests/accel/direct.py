"""Calls of the accelerator without a broker around it. Imports nothing big: the fuzzer runs it under a sanitizer."""

from __future__ import annotations

import json
from struct import Struct
from typing import Any

from orbitmq.wire.batch import encode_batch

STORE_HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
BORN_HOST = bytes([10, 1, 2, 3, 0, 0, 17, 215])
_PREFIX = Struct(">II")


class Queue:
    """All that the accelerator wants of a queue."""

    __slots__ = ("next_offset",)

    def __init__(self, next_offset: int = 0) -> None:
        self.next_offset = next_offset


def topic_of(name: str, queues: int) -> tuple[Any, ...]:
    encoded = name.encode()
    return (tuple(Queue(n) for n in range(queues)), bytes([len(encoded)]) + encoded, 12345, name)


def topics_of(count: int = 2, queues: int = 4) -> dict[bytes, tuple[Any, ...]]:
    return {b"Topic%d" % number: topic_of(f"Topic{number}", queues) for number in range(count)}


def settings_of(
    max_body: int = 1 << 22, max_frame: int = 1 << 24, store_host: bytes = STORE_HOST
) -> tuple[Any, ...]:
    parts = (b'{"code":0,"extFields":{"msgId":"', b'"},"flag":1,"opaque":', b',"version":407}')
    return (max_body, max_frame, store_host, b"CLUSTER\x01C", store_host.hex().upper().encode(), *parts)


def header(code: int, ext: dict[str, str], opaque: int = 1, flag: int = 0) -> bytes:
    rows = {
        "code": code,
        "extFields": ext,
        "flag": flag,
        "language": "JAVA",
        "opaque": opaque,
        "version": 407,
    }
    return json.dumps(rows, separators=(",", ":")).encode()


def framed(head: bytes, body: bytes) -> bytes:
    return _PREFIX.pack(4 + len(head) + len(body), len(head)) + head + body


def ext_of(topic: str, queue_id: int, properties: str, **more: str) -> dict[str, str]:
    numbers = {"d": "4", "e": str(queue_id), "f": "0", "g": "1700000000000", "h": "0"}
    return {"a": "pg", "b": topic, "c": "TBW102", **numbers, "i": properties, "j": "0", "k": "false", **more}


def single(number: int, body: bytes, topic: str = "Topic0", padding: int = 1) -> tuple[bytes, bytes]:
    """Header and body of a plain send."""
    text = f"UNIQ_KEY\x01C0000202{number:024X}\x02WAIT\x01true\x02TAGS\x01TagA\x02KEYS\x01a b\x02P\x01{'x' * padding}"
    return header(310, ext_of(topic, number % 4, text, m="false"), number), body


def batch(number: int, bodies: list[bytes], topic: str = "Topic0", padding: int = 1) -> tuple[bytes, bytes]:
    """Header and body of a plain batch."""
    text = b"UNIQ_KEY\x01C0000202%024X\x02WAIT\x01true\x02P\x01" + b"x" * padding
    items = encode_batch([(0, body, text % (number + n)) for n, body in enumerate(bodies)])
    return header(320, ext_of(topic, number % 4, "WAIT\x01true", m="true"), number), items


def stage(
    stage_frames: Any,
    data: bytes,
    start: int = 0,
    end: int | None = None,
    *,
    topics: dict[bytes, tuple[Any, ...]],
    settings: tuple[Any, ...],
    position: int = 1000,
    room_end: int = 1 << 40,
    born_host: bytes = BORN_HOST,
) -> Any:
    stop = len(data) if end is None else end
    return stage_frames(data, start, stop, topics, settings, position, room_end, 1_700_000_000_123, born_host)
