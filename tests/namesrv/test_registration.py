from __future__ import annotations

import json

import msgspec
import pytest

from orbitmq.namesrv.registration import decode_registration, decode_version
from orbitmq.namesrv.routes import DataVersion, QueueSpec, RouteTable
from orbitmq.net.errors import RequestError
from orbitmq.wire import register_body
from orbitmq.wire.bodies import RegisterBrokerBody
from orbitmq.wire.command import Command, request
from orbitmq.wire.errors import BadBody, BadHeader

EXT = {
    "brokerName": "broker-a",
    "brokerAddr": "127.0.0.1:10911",
    "clusterName": "C",
    "haServerAddr": "127.0.0.1:10912",
    "brokerId": "0",
}
BODY = {
    "filterServerList": ["127.0.0.1:30000"],
    "topicConfigSerializeWrapper": {
        "dataVersion": {"counter": 3, "timestamp": 1700000000000},
        "topicConfigTable": {
            "T": {"perm": 4, "readQueueNums": 8, "topicName": "T", "topicSysFlag": 1, "writeQueueNums": 2}
        },
    },
}
VERSION = DataVersion(1700000000000, 3)


def registration(body: bytes, **ext: str) -> Command:
    return request(103, {**EXT, **ext}, body)


def compress(plain: bytes) -> bytes:
    return register_body.encode(msgspec.json.decode(plain, type=RegisterBrokerBody), compressed=True)


def test_everything_is_read_the_first_time() -> None:
    found = decode_registration(registration(json.dumps(BODY).encode()), RouteTable(), "conn")
    assert (found.cluster, found.broker_name, found.broker_id) == ("C", "broker-a", 0)
    assert (found.addr, found.ha_addr, found.conn) == ("127.0.0.1:10911", "127.0.0.1:10912", "conn")
    assert found.version == VERSION
    assert found.topics == {"T": QueueSpec(8, 2, 4, 1)}
    assert found.filter_servers == ("127.0.0.1:30000",)


@pytest.mark.parametrize("compressed", [False, True])
def test_topics_of_a_known_version_are_not_even_looked_at(
    compressed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = RouteTable()
    plain = json.dumps(BODY).encode()
    body = compress(plain) if compressed else plain
    cmd = registration(body, compressed="true" if compressed else "false")
    first = decode_registration(cmd, table, None)
    assert first.version == VERSION
    table.register(first, 0)
    with monkeypatch.context() as patch:
        patch.setattr(register_body, "decode", None)
        again = decode_registration(cmd, table, None)
    assert (again.version, again.topics, again.filter_servers) == (VERSION, {}, None)
    table.register(again, 1)
    assert table.topic_list() == ["T"]


def test_the_slaves_topics_are_never_read() -> None:
    found = decode_registration(registration(json.dumps(BODY).encode(), brokerId="1"), RouteTable(), None)
    assert found.topics == {}


def test_a_state_version_of_5x_is_kept() -> None:
    version = decode_version(b'{"counter":1,"stateVersion":7,"timestamp":2}')
    assert version == DataVersion(2, 1, 7)
    assert version.to_dict() == {"counter": 1, "stateVersion": 7, "timestamp": 2}


@pytest.mark.parametrize(
    ("body", "ext", "error"),
    [
        (b"{}", {"bodyCrc32": "1"}, RequestError),
        (b"{", {}, BadBody),
        (b"nonsense", {"compressed": "true"}, BadBody),
        (b"x\x9cc```\x00\x00\x00\x04\x00\x01", {"compressed": "true"}, BadBody),
        (b"{}", {"brokerId": "first"}, BadHeader),
    ],
)
def test_what_is_damaged_is_refused(body: bytes, ext: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error):
        decode_registration(registration(body, **ext), RouteTable(), None)
