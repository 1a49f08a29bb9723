"""Spans of OpenTelemetry for sends and handled messages, joined over the wire by the standard headers.

    orbitmq.connect(interceptors=[OpenTelemetry()])

Needs the package `opentelemetry-api`; without an SDK set up by the program its calls do nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from orbitmq.client.errors import BadRequest
from orbitmq.client.tracing import Interceptor, Sending

if TYPE_CHECKING:
    from orbitmq.client.receipt import Receipt

SYSTEM = "rocketmq"  # the name that the semantic conventions give to this protocol


class OpenTelemetry(Interceptor):
    """`tracer_provider` and `propagator` default to the global ones."""

    def __init__(self, *, tracer_provider: Any = None, propagator: Any = None) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError as error:
            raise BadRequest(
                "the package opentelemetry-api is not installed", hint="pip install opentelemetry-api"
            ) from error
        self._trace = trace
        self._propagator = propagator or propagate
        self._tracer = trace.get_tracer("orbitmq", tracer_provider=tracer_provider)

    def before_send(self, sending: Sending) -> None:
        span = self._tracer.start_span(
            f"publish {sending.topic}",
            kind=self._trace.SpanKind.PRODUCER,
            attributes={
                "messaging.system": SYSTEM,
                "messaging.operation.type": "publish",
                "messaging.destination.name": sending.topic,
                "messaging.rocketmq.client_group": sending.group,
                "messaging.message.body.size": len(sending.body),
            },
        )
        sending.notes[OpenTelemetry] = span
        self._propagator.inject(sending.properties, context=self._trace.set_span_in_context(span))

    def after_send(self, sending: Sending, receipt: Receipt | None, error: BaseException | None) -> None:
        span = sending.notes.pop(OpenTelemetry, None)
        if span is None:
            return
        if receipt is not None:
            span.set_attribute("messaging.message.id", receipt.msg_id)
            span.set_attribute("messaging.destination.partition.id", str(receipt.queue_id))
        if error is not None:
            span.record_exception(error)
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(error)))
        span.end()

    @contextmanager
    def handling(self, msg: Any, group: str) -> Iterator[None]:
        context = self._propagator.extract(msg.properties)
        with self._tracer.start_as_current_span(
            f"process {msg.topic}",
            context=context,
            kind=self._trace.SpanKind.CONSUMER,
            attributes={
                "messaging.system": SYSTEM,
                "messaging.operation.type": "process",
                "messaging.destination.name": msg.topic,
                "messaging.consumer.group.name": group,
                "messaging.message.id": msg.msg_id,
            },
        ):
            yield
