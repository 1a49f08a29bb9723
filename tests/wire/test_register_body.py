from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.wire import register_body
from orbitmq.wire.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigWrapper
from orbitmq.wire.errors import BadBody

PLAIN = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":0,"timestamp":1700000000000},'
    b'"topicConfigTable":{"TopicA":{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
    b'"topicName":"TopicA","topicSysFlag":0,"writeQueueNums":4}}}}'
)


def sized(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part


def stream(
    topics: list[bytes], *, count: int | None = None, tail: bytes = b"", servers: bytes = b"[]"
) -> bytes:
    number = len(topics) if count is None else count
    head = sized(b'{"counter":1,"timestamp":2}') + number.to_bytes(4, "big")
    return zlib.compress(head + b"".join(map(sized, topics)) + sized(servers) + tail, 9)


def test_plain_body_is_javas() -> None:
    body = register_body.decode(PLAIN)
    assert body.data_version == DataVersion(counter=0, timestamp=1_700_000_000_000)
    assert body.topics["TopicA"].read_queue_nums == 4
    assert register_body.encode(body) == PLAIN


def test_compressed_body_is_javas() -> None:
    data = register_body.encode(register_body.decode(PLAIN), compressed=True)
    assert data[:2] == b"\x78\xda"
    assert zlib.decompress(data) == (
        sized(b'{"counter":0,"timestamp":1700000000000}')
        + (1).to_bytes(4, "big")
        + sized(b"TopicA 4 4 6 SINGLE_TAG")
        + sized(b"[]")
    )
    assert register_body.decode(data, compressed=True) == register_body.decode(PLAIN)


NAMES = st.text("abcXYZ019%_-|", min_size=1, max_size=20)
TOPICS = st.builds(
    TopicConfig,
    perm=st.integers(0, 15),
    read_queue_nums=st.integers(0, 1024),
    write_queue_nums=st.integers(0, 1024),
    topic_filter_type=st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
)


@given(st.dictionaries(NAMES, TOPICS, max_size=6), st.lists(st.text(max_size=9), max_size=3), st.booleans())
def test_round_trip(topics: dict[str, TopicConfig], servers: list[str], compressed: bool) -> None:
    for name, topic in topics.items():
        topic.topic_name = name
    body = RegisterBrokerBody(
        filter_server_list=servers,
        topic_config_serialize_wrapper=TopicConfigWrapper(
            data_version=DataVersion(counter=3, timestamp=4), topic_config_table=topics
        ),
    )
    data = register_body.encode(body, compressed=compressed)
    assert register_body.decode(data, compressed=compressed) == body


def test_what_5x_adds_is_understood_or_left_alone() -> None:
    topics = [b'T1 4 8 6 SINGLE_TAG {"+message.type":"NORMAL"}', b"T2 1 1 6 SINGLE_TAG {}"]
    body = register_body.decode(stream(topics, tail=b"\0\0\0\0"), compressed=True)
    assert body.topics["T1"].attributes == {"+message.type": "NORMAL"}
    assert (body.topics["T1"].read_queue_nums, body.topics["T1"].write_queue_nums) == (4, 8)
    assert body.topics["T2"].attributes is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not zlib",
        stream([])[:-3],
        zlib.compress(b""),
        zlib.compress(b"\xff\xff\xff\xff"),
        stream([], count=2**32 - 1),
        stream([], count=1),
        stream([b"TopicA 4 4 6"]),
        stream([b"TopicA 4 x 6 SINGLE_TAG"]),
        stream([b"\xff 4 4 6 SINGLE_TAG"]),
        stream([b"TopicA 4 4 6 SINGLE_TAG {"]),
        stream([], servers=b"{}"),
        stream([], servers=b"[3]"),
        stream([], servers=b"["),
    ],
)
def test_a_broken_stream_is_refused(data: bytes) -> None:
    with pytest.raises(BadBody):
        register_body.decode(data, compressed=True)


def test_a_stream_that_explodes_is_refused() -> None:
    bomb = zlib.compress(bytes(register_body.MAX_INFLATED_BYTES + 1))
    with pytest.raises(BadBody, match="inflates to more than"):
        register_body.decode(bomb, compressed=True)


def test_crc_has_no_sign() -> None:
    assert register_body.crc32(b"") == 0
    assert all(0 <= register_body.crc32(bytes([byte])) < 2**31 for byte in range(256))
    assert register_body.crc32(b"TopicA") == zlib.crc32(b"TopicA") & 0x7FFFFFFF
