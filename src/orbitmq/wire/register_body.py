"""The body of REGISTER_BROKER: a broker's topics, plain as JSON or as one zlib stream.

The compressed form is a sequence of length-prefixed parts: the data version as JSON, the number of topics,
each topic as `name read write perm filterType` (5.x adds attributes as JSON), the filter servers as a JSON
list. What 5.x appends after that (queue mappings) is not ours to read.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from orbitmq.wire import body_codec, fastjson
from orbitmq.wire.bodies_admin import DataVersion, TopicConfig, TopicConfigWrapper
from orbitmq.wire.body_codec import Body
from orbitmq.wire.errors import BadBody
from orbitmq.wire.frame import MAX_FRAME_BYTES

# 100,000 topics take about 4 MB; a stream that grows beyond this is an attack, not a broker.
MAX_INFLATED_BYTES: Final = 4 * MAX_FRAME_BYTES
_LEVEL: Final = 9
_TOPIC_ITEMS: Final = 5


class RegisterBrokerBody(Body, kw_only=True):
    """A broker's topics and filter servers."""

    filter_server_list: list[str] = msgspec.field(default_factory=list)
    topic_config_serialize_wrapper: TopicConfigWrapper = msgspec.field(default_factory=TopicConfigWrapper)

    @property
    def data_version(self) -> DataVersion:
        return self.topic_config_serialize_wrapper.data_version

    @property
    def topics(self) -> dict[str, TopicConfig]:
        return self.topic_config_serialize_wrapper.topic_config_table


def encode(body: RegisterBrokerBody, *, compressed: bool = False) -> bytes:
    """Write the body; the compressed form loses order and topicSysFlag of the topics, as in Java."""
    if not compressed:
        return body_codec.encode(body)
    parts = [_sized(fastjson.dumps(body.data_version)), len(body.topics).to_bytes(4, "big")]
    for name, topic in body.topics.items():
        items = [name, topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_filter_type]
        parts.append(_sized(" ".join(map(str, items)).encode()))
    parts.append(_sized(fastjson.dumps(body.filter_server_list)))
    return zlib.compress(b"".join(parts), _LEVEL)


def decode(data: bytes, *, compressed: bool = False) -> RegisterBrokerBody:
    """Read the body; raises BadBody."""
    if not compressed:
        return body_codec.decode(RegisterBrokerBody, data)
    parts = _Parts(_inflate(data))
    version = body_codec.decode(DataVersion, parts.sized())
    topics = [_topic(parts.sized()) for _ in range(parts.count())]
    servers = fastjson.loads(parts.sized())
    if not isinstance(servers, list) or not all(isinstance(server, str) for server in servers):
        raise BadBody("the compressed register body's filter servers are not a list of texts")
    return RegisterBrokerBody(
        filter_server_list=servers,
        topic_config_serialize_wrapper=TopicConfigWrapper(
            data_version=version, topic_config_table={topic.topic_name: topic for topic in topics}
        ),
    )


def crc32(data: bytes) -> int:
    """The check sum of the body as sent, in the form the header's bodyCrc32 has it."""
    return zlib.crc32(data) & 0x7FFFFFFF


def _sized(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part


def _inflate(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(data, MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise BadBody(f"the compressed register body is not a zlib stream: {error}") from error
    if not stream.eof:
        if len(plain) >= MAX_INFLATED_BYTES:
            raise BadBody(f"the compressed register body inflates to more than {MAX_INFLATED_BYTES} bytes")
        raise BadBody("the compressed register body is cut short")
    return plain


def _topic(part: bytes) -> TopicConfig:
    try:
        items = part.decode().split(" ", _TOPIC_ITEMS)
    except UnicodeDecodeError as error:
        raise BadBody(f"a topic of the compressed register body is not UTF-8: {error}") from error
    if len(items) < _TOPIC_ITEMS:
        raise BadBody(
            f"a topic of the compressed register body has {len(items)} items instead of {_TOPIC_ITEMS}"
        )
    numbers = [fastjson.parse_int(item) for item in items[1:4]]
    read, write, perm = numbers
    if read is None or write is None or perm is None:
        raise BadBody(f"a topic of the compressed register body has numbers that are none: {items[1:4]!r}")
    return TopicConfig(
        topic_name=items[0],
        read_queue_nums=read,
        write_queue_nums=write,
        perm=perm,
        topic_filter_type=items[4],
        attributes=_attributes(items[5]) if len(items) > _TOPIC_ITEMS else None,
    )


def _attributes(text: str) -> dict[str, str] | None:
    found = fastjson.loads(text)
    if not isinstance(found, dict):
        return None
    return {str(key): str(value) for key, value in found.items()} or None


class _Parts:
    """Reads length-prefixed parts one after the other, never beyond the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pos = 0

    def count(self) -> int:
        number = int.from_bytes(self._take(4), "big")
        # Each item needs at least its own length, so a larger number is a lie.
        if number * 4 > len(self._data) - self._pos:
            raise BadBody(f"the compressed register body promises {number} topics but is too short for them")
        return number

    def sized(self) -> bytes:
        return self._take(int.from_bytes(self._take(4), "big"))

    def _take(self, size: int) -> bytes:
        end = self._pos + size
        if end > len(self._data):
            raise BadBody(f"the compressed register body ends at byte {len(self._data)} inside a part")
        part = self._data[self._pos : end]
        self._pos = end
        return part
