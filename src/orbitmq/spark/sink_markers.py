"""Markers: what a sink has decided, kept by one broker, so that a repeated commit finds it.

An application (one streaming query, or one `txnAppId`) writes a marker `decided` before it commits the first message
of a batch, and `done` after the last. `decided` holds the handles of all its half messages: whoever finds it knows
which messages belong to the batch, and no other attempt of the same batch may commit its own.

All markers of an application lie on one broker, whose name the name servers keep. So the newest marker is the newest:
there is no other broker that could hold a later one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from orbitmq.client.admin.topics import create_topic
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import NotFound, OrbitMQError
from orbitmq.client.sender import Sender
from orbitmq.spark.errors import SourceError
from orbitmq.spark.sink_handles import Handles
from orbitmq.spark.subscription import SINK_TOPIC
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import request
from orbitmq.wire.message import Message, decode_records
from orbitmq.wire.message_id import parse_offset_msg_id

TOPIC: Final = SINK_TOPIC
NAMESPACE: Final = "ORBITMQ_SPARK_SINK"
DECIDED: Final = "decided"
DONE: Final = "done"
PART: Final = "part"
PART_BYTES: Final = 1 << 20
_NEWEST: Final = 16
_FOREVER_MS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Marker:
    batch: int
    state: str
    group: str
    rows: int = 0
    """How many half messages, each of one row or of many. Markers in brokers call it so since each had one."""
    ordered: bool = False
    last_part: str = ""
    """Offset id of the last record with handles; each names the one before."""

    @property
    def rank(self) -> tuple[int, bool]:
        return self.batch, self.state == DONE


class Markers:
    def __init__(self, cluster: Cluster, app_id: str) -> None:
        self._cluster = cluster
        self._app_id = app_id
        self._sender = Sender(cluster, "ORBITMQ_SPARK_SINK")
        self._broker = ""

    async def newest(self) -> Marker | None:
        """The last thing this application wrote down; None if it never wrote anything."""
        broker = await self._keeper(create=False)
        if broker is None:
            return None
        fields = {
            "topic": TOPIC,
            "key": self._app_id,
            "maxNum": str(_NEWEST),
            "beginTimestamp": "0",
            "endTimestamp": str(_FOREVER_MS),
            "_UNIQUE_KEY_QUERY": "false",
        }
        answer = await self._cluster.request(
            await self._addr(broker),
            request(RequestCode.QUERY_MESSAGE, fields),
            accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        if answer.code != ResponseCode.SUCCESS:
            return None
        found = [
            (_marker(message), message.queue_offset)
            for message in decode_records(answer.body)
            if message.topic == TOPIC and message.tags in (DECIDED, DONE) and message.keys == self._app_id
        ]
        # Of two decisions about one batch the first counts, whoever made the second.
        best = max(found, key=lambda item: (item[0].rank, -item[1]), default=None)
        return None if best is None else best[0]

    async def decide(self, batch: int, group: str, handles: Handles, *, ordered: bool) -> tuple[Marker, bool]:
        """Writes down that these half messages, and no others, are the batch: the decision that counts, and
        whether it is this one. It is another when a second driver works on the same batch and was faster.
        """
        last_part = ""
        for part in _parts(handles):
            last_part = await self._put(PART, {"batch": batch, "before": last_part, "handles": part})
        marker = Marker(batch, DECIDED, group, len(handles), ordered, last_part)
        await self._put(DECIDED, _fields(marker))
        counts = await self.newest() or marker
        return counts, counts == marker

    async def done(self, marker: Marker) -> None:
        await self._put(DONE, _fields(replace(marker, state=DONE)))

    async def handles(self, marker: Marker) -> Handles:
        """The half messages that a marker has decided on, in the order of their rows."""
        parts: list[dict[str, str]] = []
        at = marker.last_part
        while at:
            record = await self._part(at)
            parts.append(record["handles"])
            at = str(record["before"])
        found = Handles()
        for part in reversed(parts):
            found.extend(Handles.unpacked({broker: base64.b64decode(text) for broker, text in part.items()}))
        if len(found) != marker.rows:
            raise SourceError(
                f"the marker of batch {marker.batch} of '{self._app_id}' tells of {marker.rows} half messages, "
                f"{len(found)} are written down",
                hint=f"look at topic {TOPIC} with `orbitmq message key {TOPIC} {self._app_id}`",
            )
        return found

    async def _part(self, offset_id: str) -> Any:
        # Through the keeper's present address: an id holds the one it had when it was written.
        command = request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(parse_offset_msg_id(offset_id)[2])})
        broker = await self._keeper(create=False)
        answer = await self._cluster.request(await self._addr(broker or ""), command)
        message = decode_records(answer.body)[0]
        if message.topic != TOPIC or message.tags != PART:
            raise SourceError(
                f"there is no part of a marker at {offset_id}",
                hint="the broker's log was cleaned or replaced",
            )
        return json.loads(message.body)

    async def _put(self, state: str, fields: dict[str, Any]) -> str:
        broker = await self._keeper(create=True)
        body = json.dumps(fields, separators=(",", ":")).encode()
        # Parts have no key: however many there are, they never push a decision out of an answer by key.
        keys = (self._app_id,) if state != PART else ()
        message = self._sender.prepare(TOPIC, body, tag=state, keys=keys)
        receipt = await self._sender.send(message, queue_id=0, broker=broker)
        return receipt.offset_msg_id

    async def _keeper(self, *, create: bool) -> str | None:
        """The broker that keeps this application's markers, chosen at its first one."""
        if self._broker:
            return self._broker
        fields = {"namespace": NAMESPACE, "key": self._app_id}
        answer = await self._cluster.ask_namesrv(
            request(RequestCode.GET_KV_CONFIG, fields),
            accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        if answer.code == ResponseCode.SUCCESS and answer.ext.get("value"):
            self._broker = answer.ext["value"]
            return self._broker
        if not create:
            return None
        masters = (await self._ready_topic()).items()
        self._broker = min(masters)[0]
        chosen = {**fields, "value": self._broker}
        await self._cluster.tell_namesrvs(lambda: request(RequestCode.PUT_KV_CONFIG, chosen))
        return self._broker

    async def _ready_topic(self) -> dict[str, str]:
        route = await self._cluster.find_route(TOPIC, refresh=True)
        if route is None or not route.masters():
            return await create_topic(self._cluster, TOPIC, read_queues=1, write_queues=1)
        return route.masters()

    async def _addr(self, broker: str) -> str:
        try:
            return await self._cluster.broker_addr(broker)
        except NotFound as error:
            raise SourceError(
                f"broker '{broker}', which keeps the markers of '{self._app_id}', is not registered",
                hint="start it: without it nobody knows which messages were committed before",
                retryable=True,
            ) from error


def _fields(marker: Marker) -> dict[str, Any]:
    return {name: getattr(marker, name) for name in Marker.__slots__}


def _marker(message: Message) -> Marker:
    try:
        return Marker(**json.loads(message.body))
    except (ValueError, TypeError) as error:
        raise OrbitMQError(
            f"message {message.offset_msg_id} of {TOPIC} is no marker: {error}",
            hint="a newer version wrote it, or somebody else sends to this topic",
        ) from error


def _parts(handles: Handles) -> Iterator[dict[str, str]]:
    """The handles in records that fit into one message each; order is kept per broker."""
    rows = PART_BYTES // 16
    for broker, numbers in handles.of_broker.items():
        for start in range(0, len(numbers), 2 * rows):
            packed = Handles({broker: numbers[start : start + 2 * rows]}).packed()
            yield {name: base64.b64encode(data).decode() for name, data in packed.items()}
