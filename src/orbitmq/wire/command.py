"""A command: one request or one response, as both sides of a connection see it."""

from __future__ import annotations

from typing import Final

import msgspec

from orbitmq.wire import header_binary, header_json
from orbitmq.wire.errors import FrameError, WireError
from orbitmq.wire.frame import LENGTH_BYTES, MAX_FRAME_BYTES

# 4.9.7: the newest release line whose behaviour this implementation follows; peers switch features on it.
VERSION: Final = 407
LANGUAGE: Final = "PYTHON"

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

CODEC_JSON: Final = 0
CODEC_BINARY: Final = 1

_HEADER_LENGTH_MASK: Final = 0xFFFFFF


class Command(msgspec.Struct, gc=False):
    """One request or response. `opaque` ties a response to its request; `codec` is the form of its header."""

    code: int
    flag: int = 0
    opaque: int = 0
    ext: dict[str, str] = msgspec.field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None
    language: str = LANGUAGE
    version: int = VERSION
    codec: int = CODEC_JSON

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """The sender wants no answer, not even on error."""
        return self.flag & FLAG_ONEWAY != 0

    def reply(
        self, code: int = 0, remark: str | None = None, ext: dict[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """The response to this request, in the request's codec."""
        fields = {} if ext is None else ext
        return Command(code, FLAG_RESPONSE, self.opaque, fields, body, remark, LANGUAGE, VERSION, self.codec)


def request(
    code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, oneway: bool = False
) -> Command:
    """A new request; the channel that sends it chooses the opaque."""
    return Command(code, FLAG_ONEWAY if oneway else 0, 0, {} if ext is None else ext, body)


def decode(frame: bytes | memoryview) -> Command:
    """Read a frame (without its length prefix); raises WireError when it is not a command."""
    size = len(frame)
    if size < 4:
        raise WireError(f"frame of {size} bytes has no header length")
    mark = int.from_bytes(frame[:4], "big")
    end = 4 + (mark & _HEADER_LENGTH_MASK)
    if end > size:
        raise WireError(f"header length {end - 4} does not fit into a frame of {size} bytes")
    codec = mark >> 24
    if codec == CODEC_JSON:
        code, flag, opaque, ext, remark, language, version = header_json.decode(frame[4:end])
    elif codec == CODEC_BINARY:
        code, flag, opaque, ext, remark, language, version = header_binary.decode(frame[4:end])
    else:
        raise WireError(f"header codec {codec} is unknown; 0 (JSON) and 1 (binary) are supported")
    return Command(code, flag, opaque, ext, bytes(frame[end:]), remark, language, version, codec)


def encode(command: Command) -> bytes:
    """Write a whole frame, length prefix included."""
    head, body = encode_head(command), command.body
    return head + body if body else head


def encode_head(command: Command) -> bytes:
    """Write a frame up to its body, so that a large body can be sent without being copied."""
    # A code that does not fit the binary form's short goes out as JSON: the codec is chosen per frame.
    if command.codec == CODEC_BINARY and command.code <= header_binary.MAX_CODE:
        write, codec = header_binary.encode, CODEC_BINARY
    else:
        write, codec = header_json.encode, CODEC_JSON
    header = write(
        command.code,
        command.flag,
        command.opaque,
        command.ext,
        command.remark,
        command.language,
        command.version,
    )
    header_size = len(header)
    length = 4 + header_size + len(command.body)
    if length > MAX_FRAME_BYTES - LENGTH_BYTES:
        raise FrameError(
            f"command {command.code} with a header of {header_size} and a body of {len(command.body)} bytes "
            f"is above the frame limit of {MAX_FRAME_BYTES} bytes; ask for less or send less at once"
        )
    return ((length << 32) | (codec << 24) | header_size).to_bytes(8, "big") + header
