"""From a REGISTER_BROKER request to a registration, reading no more of the body than is needed.

A broker repeats all its topics every 30 s. The data version in the body is read first, which skips over the
topics without making objects of them; only if the route table does not have that version are they read.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Mapping
from typing import Final

import msgspec

from orbitmq.namesrv.routes import DataVersion, QueueSpec, Registration, RouteTable
from orbitmq.net.errors import RequestError
from orbitmq.wire import bodies, register_body
from orbitmq.wire.body_codec import Body
from orbitmq.wire.checksum import crc32
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.errors import BadBody
from orbitmq.wire.headers import RegisterBrokerHeader, parse

# Brokers before 3.0.11 send the topic table alone, without the envelope around it.
ENVELOPE_VERSION: Final = 37
_HEAD_BYTES: Final = 1024


class _VersionOfTable(Body, kw_only=True):
    data_version: bodies.DataVersion = msgspec.field(default_factory=bodies.DataVersion)


class _VersionInEnvelope(Body, kw_only=True):
    topic_config_serialize_wrapper: _VersionOfTable = msgspec.field(default_factory=_VersionOfTable)


def decode_registration(cmd: Command, routes: RouteTable, conn: Hashable) -> Registration:
    """The registration in a request; topics are left out if the table knows them in this version."""
    header = parse(RegisterBrokerHeader, cmd.ext)
    body, compressed = cmd.body, bool(header.compressed)
    if header.body_crc32 and crc32(body) != header.body_crc32:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"crc32 not match: the body of {header.broker_addr} was damaged on the way; register again",
        )
    enveloped = cmd.version >= ENVELOPE_VERSION
    version = _peek_version(body, compressed, enveloped)
    topics: Mapping[str, QueueSpec] = {}
    filter_servers: tuple[str, ...] | None = None
    if body and not routes.is_known(header.broker_name, header.broker_id, header.broker_addr, version):
        if enveloped:
            whole = register_body.decode(body, compressed=compressed)
            table, filter_servers = whole.topics, tuple(whole.filter_server_list)
        else:
            table = bodies.decode(bodies.TopicConfigWrapper, body).topic_config_table
        topics = {
            topic.topic_name or name: QueueSpec(
                topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag
            )
            for name, topic in table.items()
        }
    return Registration(
        cluster=header.cluster_name,
        broker_name=header.broker_name,
        broker_id=header.broker_id,
        addr=header.broker_addr,
        ha_addr=header.ha_server_addr,
        version=version,
        topics=topics,
        filter_servers=filter_servers,
        conn=conn,
    )


def decode_version(body: bytes) -> DataVersion:
    """The DataVersion of a QUERY_DATA_VERSION request."""
    return _version(bodies.decode(bodies.DataVersion, body))


def _peek_version(body: bytes, compressed: bool, enveloped: bool) -> DataVersion:
    if not body:
        return DataVersion()
    if not enveloped:
        return _version(bodies.decode(_VersionOfTable, body).data_version)
    if not compressed:
        return _version(bodies.decode(_VersionInEnvelope, body).topic_config_serialize_wrapper.data_version)
    try:
        head = zlib.decompressobj().decompress(body, _HEAD_BYTES)
    except zlib.error as error:
        raise BadBody(f"the compressed register body is not a zlib stream: {error}") from error
    size = int.from_bytes(head[:4], "big")
    if not 0 < size <= len(head) - 4:
        raise BadBody(f"the compressed register body has no data version: its length would be {size}")
    return decode_version(head[4 : 4 + size])


def _version(found: bodies.DataVersion) -> DataVersion:
    return DataVersion(found.timestamp, found.counter, found.state_version or 0)
