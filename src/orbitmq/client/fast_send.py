"""Send requests made from templates: everything that does not change between two messages is encoded once.

The plain twin is a `Command` with a `SendHeaderV2`; tests compare the two frame by frame. About 0.8 µs per frame
instead of 4, and a batch entry in 0.3 µs, which is what lets one core send hundreds of thousands a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Final

import msgspec

from orbitmq.client.routes import AUTO_CREATE_QUEUES
from orbitmq.wire.batch import FIXED_BYTES
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import FLAG_ONEWAY, LANGUAGE, VERSION
from orbitmq.wire.topics import DEFAULT_TOPIC

_prefix = Struct(">II").pack
_entry_head = Struct(">iiiii").pack
_short = Struct(">h").pack
_to_json = msgspec.json.Encoder().encode

UNIQ: Final = b"UNIQ_KEY\x01"
ID_BYTES: Final = 32
PLAIN_ENTRY_BYTES: Final = FIXED_BYTES + len(UNIQ) + ID_BYTES
"""What a batch adds to a body that has nothing but its unique id."""
# The text of `i` in the header: its value starts with the unique id, and JSON writes 0x01 as an escape.
_UNIQ_JSON: Final = b'"UNIQ_KEY\\u0001%b%b"'


class FrameMaker:
    """Frames to one queue of one topic for one producer group."""

    __slots__ = ("_batch", "_oneway", "_reply", "_single")

    def __init__(self, group: str, topic: str, queue_id: int, broker: str) -> None:
        def template(code: int, flag: int, batch: bytes) -> bytes:
            fields = (
                b'{"code":%d,"extFields":{"a":%b,"b":%b,"c":"%b","d":"%d","e":"%d","f":"\0","g":"\0","h":"0","i":\1,'
                b'"j":"0","k":"false","m":"%b","n":%b},"flag":%d,"language":"%b","opaque":\0,'
                b'"serializeTypeCurrentRPC":"JSON","version":%d}'
            ) % (
                code,
                _to_json(group),
                _to_json(topic),
                DEFAULT_TOPIC.encode(),
                AUTO_CREATE_QUEUES,
                queue_id,
                batch,
                _to_json(broker),
                flag,
                LANGUAGE.encode(),
                VERSION,
            )
            # Names may contain a percent sign; the places of what changes are marked until it is escaped.
            return fields.replace(b"%", b"%%").replace(b"\0", b"%d").replace(b"\1", b"%b")

        self._single = template(RequestCode.SEND_MESSAGE_V2, 0, b"false")
        self._oneway = template(RequestCode.SEND_MESSAGE_V2, FLAG_ONEWAY, b"false")
        self._batch = template(RequestCode.SEND_BATCH_MESSAGE, 0, b"true")
        self._reply = template(RequestCode.SEND_REPLY_MESSAGE_V2, 0, b"false")

    def single(
        self, opaque: int, born_ms: int, msg_id: bytes, more: bytes, sys_flag: int, body: bytes
    ) -> bytes:
        """`more` is what stands behind the unique id in the properties, written for the inside of JSON text."""
        header = self._single % (sys_flag, born_ms, _UNIQ_JSON % (msg_id, more), opaque)
        size = len(header)
        return b"%b%b%b" % (_prefix(size + 4 + len(body), size), header, body)

    def oneway(
        self, opaque: int, born_ms: int, msg_id: bytes, more: bytes, sys_flag: int, body: bytes
    ) -> bytes:
        header = self._oneway % (sys_flag, born_ms, _UNIQ_JSON % (msg_id, more), opaque)
        size = len(header)
        return b"%b%b%b" % (_prefix(size + 4 + len(body), size), header, body)

    def reply(
        self, opaque: int, born_ms: int, msg_id: bytes, more: bytes, sys_flag: int, body: bytes
    ) -> bytes:
        """The answer to a request of another client."""
        header = self._reply % (sys_flag, born_ms, _UNIQ_JSON % (msg_id, more), opaque)
        size = len(header)
        return b"%b%b%b" % (_prefix(size + 4 + len(body), size), header, body)

    def batch(
        self, opaque: int, born_ms: int, msg_id: bytes, more: bytes, sys_flag: int, body: bytes
    ) -> bytes:
        """`body` holds the messages; the batch itself has neither id nor properties."""
        header = self._batch % (sys_flag, born_ms, b'""', opaque)
        size = len(header)
        return b"%b%b%b" % (_prefix(size + 4 + len(body), size), header, body)


class _EntryTemplates(dict[int, bytes]):
    """By body length: an entry of a batch whose only property is its unique id."""

    def __init__(self, stamp: bytes) -> None:
        super().__init__()
        self._tail = _short(len(UNIQ) + ID_BYTES) + UNIQ + stamp

    def __missing__(self, length: int) -> bytes:
        head = _entry_head(PLAIN_ENTRY_BYTES + length, 0, 0, 0, length)
        self[length] = made = head.replace(b"%", b"%%") + b"%b" + self._tail.replace(b"%", b"%%") + b"%04X"
        return made


def encode_plain(bodies: Sequence[bytes], stamp: str, first: int) -> bytes:
    """The batch body of messages without tag, keys and properties, numbered from `first`."""
    templates = _EntryTemplates(stamp.encode())
    return b"".join([templates[len(body)] % (body, number) for number, body in enumerate(bodies, first)])


def encode_entries(entries: Iterable[tuple[bytes, bytes]], stamp: str, first: int) -> bytes:
    """The batch body of (body, property text behind the unique id) pairs, numbered from `first`."""
    start = UNIQ + stamp.encode()
    parts: list[bytes] = []
    for number, (body, more) in enumerate(entries, first):
        properties = b"%b%04X%b" % (start, number, more)
        total = FIXED_BYTES + len(body) + len(properties)
        parts += (_entry_head(total, 0, 0, 0, len(body)), body, _short(len(properties)), properties)
    return b"".join(parts)
