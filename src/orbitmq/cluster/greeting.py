"""What master and slave of a group say to each other before the log: who they are, and what they have.

A greeting is a magic word, the length of its text, and JSON. A plain slave, or anything else that finds the port,
cannot have sent one by chance. No input or output: bytes come in, greetings go out.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from orbitmq.cluster.epochs import EpochHistory
from orbitmq.wire import fastjson
from orbitmq.wire.errors import WireError

MAGIC: Final = b"ORBITHA1"
MOST_TEXT_BYTES: Final = 1 << 20
_LENGTH: Final = Struct(">I")
_HEAD_BYTES: Final = len(MAGIC) + _LENGTH.size
_SHOWN_BYTES: Final = 16


class NotGreeted(WireError):
    """What came is not a greeting; the text says what it looks like."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The slave: who it is, of which mastership the controller told it, and what log it has."""

    cluster: str
    broker: str
    replica: int
    token: str
    epoch: int
    end: int
    history: EpochHistory


@dataclass(frozen=True, slots=True)
class Welcome:
    """The master: its log reaches from `start` to `end`."""

    epoch: int
    history: EpochHistory
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: str


Greeting = Hello | Welcome | Refusal
_KINDS: Final[dict[str, type[Hello] | type[Welcome] | type[Refusal]]] = {
    "hello": Hello,
    "welcome": Welcome,
    "refusal": Refusal,
}
_FIELDS: Final[dict[str, dict[str, type]]] = {
    "hello": {
        "cluster": str,
        "broker": str,
        "replica": int,
        "token": str,
        "epoch": int,
        "end": int,
        "history": list,
    },
    "welcome": {"epoch": int, "history": list, "start": int, "end": int},
    "refusal": {"reason": str},
}


def encode(greeting: Greeting) -> bytes:
    kind = next(name for name, made in _KINDS.items() if isinstance(greeting, made))
    fields: dict[str, object] = {name: getattr(greeting, name) for name in _FIELDS[kind]}
    if not isinstance(greeting, Refusal):
        fields["history"] = greeting.history.to_json()
    text = fastjson.dumps({"kind": kind, **fields})
    return MAGIC + _LENGTH.pack(len(text)) + text


class GreetingReader:
    """Takes the bytes of a connection in whatever pieces they come, until the greeting is whole."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> tuple[Greeting, bytes] | None:
        """The greeting and what came behind it, or None while it is not whole. NotGreeted as soon as it can be told."""
        buffer = self._buffer
        buffer += data
        if buffer[: len(MAGIC)] != MAGIC[: len(buffer)]:
            raise NotGreeted(_guess(bytes(buffer)))
        if len(buffer) < _HEAD_BYTES:
            return None
        (size,) = _LENGTH.unpack_from(buffer, len(MAGIC))
        if size > MOST_TEXT_BYTES:
            raise NotGreeted(f"a greeting of {size} bytes is announced, at most {MOST_TEXT_BYTES} are taken")
        end = _HEAD_BYTES + size
        if len(buffer) < end:
            return None
        greeting = _decode(bytes(buffer[_HEAD_BYTES:end]))
        return greeting, bytes(buffer[end:])


def _decode(text: bytes) -> Greeting:
    try:
        data = fastjson.loads(text)
    except WireError as error:
        raise NotGreeted(f"the greeting's text is no JSON: {error}") from error
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise NotGreeted(f"a greeting of the kind {kind!r} is not known here")
    fields: dict[str, Any] = {}
    for name, wanted in _FIELDS[kind].items():
        value = data.get(name)
        if type(value) is not wanted:
            raise NotGreeted(f"{name} of the {kind} is {value!r}, which is no {wanted.__name__}")
        fields[name] = value
    try:
        if "history" in fields:
            fields["history"] = EpochHistory.from_json(fields["history"])
    except ValueError as error:
        raise NotGreeted(f"the {kind} has a bad history: {error}") from error
    return _KINDS[kind](**fields)


def _guess(seen: bytes) -> str:
    if not seen[0]:
        return (
            "what came instead of a greeting looks like a report of the plain protocol: the other side is not in "
            "controller mode; set enableControllerMode=true on all brokers of the group"
        )
    shown = seen[:_SHOWN_BYTES]
    return f"{shown!r} came instead of a greeting: whatever connected is no broker of this group"
