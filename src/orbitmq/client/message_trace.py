"""Message traces as official clients write them: who sent, who handled, how long it took.

They lie in a topic of their own, where `orbitmq trace` and other consoles find them by message id or key.

    orbitmq.connect(interceptors=[MessageTrace()])
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from orbitmq.client.core.queue_choice import Choice
from orbitmq.client.core.retry_rules import RetryRules, SendKind
from orbitmq.client.delivery import Delivery
from orbitmq.client.errors import OrbitMQError
from orbitmq.client.fast_send import FrameMaker
from orbitmq.client.outgoing import json_inside, property_text
from orbitmq.client.receipt import Receipt
from orbitmq.client.tracing import Interceptor, Sending, Settling
from orbitmq.wire.errors import WireError
from orbitmq.wire.message_id import parse_offset_msg_id
from orbitmq.wire.topics import TRACE_TOPIC
from orbitmq.wire.trace import (
    ConsumeResult,
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
    TraceMessageType,
    encode_traces,
    trace_keys,
)

if TYPE_CHECKING:
    from orbitmq.client.client import Client

log = logging.getLogger("orbitmq.client")

GROUP: Final = "_INNER_TRACE_PRODUCER"
REGION: Final = "DefaultRegion"
# A trace waits this long for company; more than this many waiting ones are dropped rather than kept in memory.
FLUSH_S: Final = 0.5
MOST_WAITING: Final = 2048
PER_MESSAGE: Final = 100
SEND_TIMEOUT_S: Final = 5.0


class MessageTrace(Interceptor):
    """One for one client. Traces that cannot be stored are dropped and counted in `dropped`."""

    def __init__(self, *, topic: str = TRACE_TOPIC) -> None:
        self.topic = topic
        self.dropped = 0
        self._client: Client | None = None
        self._delivery: Delivery | None = None
        self._waiting: list[Trace] = []
        self._flushing: asyncio.Task[None] | None = None

    def attach(self, client: Client) -> None:
        self._client = client
        self._delivery = Delivery(client, GROUP, RetryRules(), Choice.ROUND_ROBIN)
        client.adopt(self)

    # --- what is seen -----------------------------------------------------------------------------------------

    def before_send(self, sending: Sending) -> None:
        sending.notes[MessageTrace] = time.perf_counter()

    def after_send(self, sending: Sending, receipt: Receipt | None, error: BaseException | None) -> None:
        if sending.topic == self.topic:
            return
        kind = TraceMessageType.NORMAL
        if sending.transactional:
            kind = TraceMessageType.TRANSACTION_HALF
        elif sending.delayed:
            kind = TraceMessageType.DELAY
        offset_id = receipt.offset_msg_id if receipt else None
        self._add(
            PubTrace(
                timestamp_ms=sending.born_ms,
                region_id=REGION,
                group=sending.group,
                topic=sending.topic,
                msg_id=receipt.msg_id if receipt else sending.msg_id,
                tags=sending.tag,
                keys=" ".join(sending.keys) or None,
                store_host=_host_of(offset_id),
                body_bytes=len(sending.body),
                cost_ms=_since_ms(sending.notes.get(MessageTrace)),
                msg_type=kind,
                offset_msg_id=offset_id,
                success=error is None,
            )
        )

    def after_settling(self, settling: Settling) -> None:
        assert self._client is not None
        state = {"COMMIT": "COMMIT_MESSAGE", "ROLLBACK": "ROLLBACK_MESSAGE"}.get(settling.state, "UNKNOW")
        self._add(
            EndTransactionTrace(
                timestamp_ms=self._client.clock(),
                region_id=REGION,
                group=settling.group,
                topic=settling.topic,
                msg_id=settling.msg_id,
                tags=None,
                keys=None,
                store_host=_host_of(settling.offset_msg_id),
                msg_type=TraceMessageType.TRANSACTION_COMMIT,
                transaction_id=settling.msg_id,
                state=state,
                from_check=settling.from_check,
            )
        )

    @contextmanager
    def handling(self, msg: Any, group: str) -> Iterator[None]:
        assert self._client is not None
        request_id, keys = self._client.ids.next_id(), " ".join(msg.keys) or None
        start = time.perf_counter()
        self._add(
            SubBeforeTrace(
                self._client.clock(), REGION, group, request_id, msg.msg_id, msg.reconsume_times, keys
            )
        )
        result = ConsumeResult.SUCCESS
        try:
            yield
        except BaseException:
            result = ConsumeResult.EXCEPTION
            raise
        finally:
            self._add(
                SubAfterTrace(
                    request_id,
                    msg.msg_id,
                    _since_ms(start),
                    result == ConsumeResult.SUCCESS,
                    keys,
                    result,
                    self._client.clock(),
                    group,
                )
            )

    # --- how it gets there ------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Stores everything seen so far."""
        while self._waiting:
            part, self._waiting = self._waiting[:PER_MESSAGE], self._waiting[PER_MESSAGE:]
            try:
                await self._store(part)
            except (OrbitMQError, WireError) as error:
                self.dropped += len(part)
                log.warning("%d message traces are lost: %s", len(part), error)

    async def aclose(self) -> None:
        await self.flush()
        if self._delivery is not None:
            self._delivery.close()

    def _add(self, trace: Trace) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
            return
        self._waiting.append(trace)
        scope = None if self._client is None else self._client.scope
        if scope is not None and not scope.closed and (self._flushing is None or self._flushing.done()):
            self._flushing = scope.spawn(self._flush_later(), name="message-trace")

    async def _flush_later(self) -> None:
        await asyncio.sleep(FLUSH_S)
        await self.flush()

    async def _store(self, traces: list[Trace]) -> None:
        assert self._delivery is not None and self._client is not None
        desk = await self._delivery.desk(self.topic, SEND_TIMEOUT_S)
        text = property_text(None, trace_keys(traces).split(), None)
        await self._delivery.deliver(
            FrameMaker.single,
            desk,
            None,
            SendKind.AWAITED,
            self._client.ids.next_id(),
            json_inside(text),
            0,
            encode_traces(traces),
            SEND_TIMEOUT_S,
        )


def _host_of(offset_msg_id: str | None) -> str | None:
    if not offset_msg_id:
        return None
    ip, port, _ = parse_offset_msg_id(offset_msg_id)
    return f"{ip}:{port}"


def _since_ms(start: float | None) -> int:
    return 0 if start is None else round((time.perf_counter() - start) * 1000)
