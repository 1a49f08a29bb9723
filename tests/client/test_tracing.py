"""Interceptors: called around every kind of send, never harmful; message traces and OpenTelemetry spans."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from orbitmq.client.batching import PartlySent
from orbitmq.client.client import connect
from orbitmq.client.errors import BadRequest, Refused
from orbitmq.client.message import Message
from orbitmq.client.message_trace import MessageTrace
from orbitmq.client.outgoing import Out
from orbitmq.client.receipt import Receipt
from orbitmq.client.tracing import Interceptor, Interceptors, Sending, Settling
from orbitmq.wire.message import encode_record
from orbitmq.wire.trace import (
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    decode_traces,
)
from tests.client.live import SMALL, run, stored
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("tracing")
    with ServerProcess(directory, traceTopicEnable=True, maxMessageSize=100_000, **SMALL) as running:
        yield running


class Notebook(Interceptor):
    def __init__(self) -> None:
        self.ended: list[tuple[bytes, str | None, str | None]] = []
        self.settled: list[tuple[str, bool]] = []

    def before_send(self, sending: Sending) -> None:
        sending.properties["seen"] = "yes"

    def after_send(self, sending: Sending, receipt: Receipt | None, error: BaseException | None) -> None:
        self.ended.append(
            (sending.body, receipt.msg_id if receipt else None, type(error).__name__ if error else None)
        )

    def after_settling(self, settling: Settling) -> None:
        self.settled.append((settling.state, settling.from_check))


def message(**properties: str) -> Message:
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items()).encode()
    return Message(encode_record(topic="T", body=b"b", properties=text), 0, "broker-a", None)


def test_every_kind_of_send_is_seen_and_may_be_given_properties(server: ServerProcess) -> None:
    async def main() -> None:
        notebook = Notebook()
        async with connect(server.namesrv, interceptors=[notebook]) as mq:
            producer = mq.producer("g", compression=None, linger=0)
            await producer.send("Seen", b"one", tag="t")
            await producer.send_many("Seen", [b"two", Out(body=b"three", keys="k", properties={"own": "1"})])
            await producer.send_oneway("Seen", b"four")
            await (await producer.post("Seen", b"five"))
            async with producer.transaction("Seen", b"six"):
                pass
            while len(messages := await stored(mq, "Seen")) < 6:
                await asyncio.sleep(0.01)
            assert all(m.properties["seen"] == "yes" for m in messages)
            ids = {m.body: m.msg_id for m in messages}
            told = {body: msg_id for body, msg_id, _ in notebook.ended}
            assert told.pop(b"four") is None
            assert told == {body: msg_id for body, msg_id in ids.items() if body != b"four"}
            assert notebook.settled == [("COMMIT", False)]
            with pytest.raises(Refused):
                await producer.send("Seen", b"x" * 200_000)
            assert notebook.ended[-1][1:] == (None, "Refused")
            with pytest.raises(PartlySent):
                await producer.send_many("Seen", [b"a", b"x" * 200_000])
            assert [error for _, _, error in notebook.ended[-2:]] == ["PartlySent", "PartlySent"]

    run(main)


def test_an_interceptor_that_fails_harms_nothing(
    server: ServerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Interceptor):
        def before_send(self, sending: Sending) -> None:
            raise RuntimeError("before")

        def after_send(self, sending: Sending, receipt: Receipt | None, error: BaseException | None) -> None:
            raise RuntimeError("after")

        @contextmanager
        def handling(self, msg: Any, group: str) -> Iterator[None]:
            yield
            raise RuntimeError("behind")

    async def main() -> None:
        async with connect(server.namesrv, interceptors=[Broken()]) as mq:
            assert (await mq.producer("g").send("Broken", b"x")).ok

    with caplog.at_level(logging.ERROR, "orbitmq.client"):
        run(main)
        with Interceptors([Broken()]).handling(message(), "g"):
            pass
        with pytest.raises(KeyError), Interceptors([Broken()]).handling(message(), "g"):
            raise KeyError("the handler's own")
    assert "Broken.before_send failed" in caplog.text and "Broken.after_send failed" in caplog.text
    assert "an interceptor failed after handling" in caplog.text


def test_message_traces_tell_the_whole_story(server: ServerProcess) -> None:
    async def main() -> None:
        trace = MessageTrace()
        async with connect(server.namesrv, interceptors=[trace]) as mq:
            producer = mq.producer("tracer")
            receipt = await producer.send("Traced", b"12345", tag="t", keys=["k1", "k2"])
            await producer.send("Traced", b"later", delay_level=1)
            async with producer.transaction("Traced", b"half") as tx:
                pass
            with pytest.raises(Refused):
                await mq.producer("tracer", compression=None).send("Traced", b"x" * 200_000)
            with Interceptors([trace]).handling(message(UNIQ_KEY="M1", KEYS="k9"), "readers"):
                await asyncio.sleep(0.01)
            with pytest.raises(KeyError), Interceptors([trace]).handling(message(UNIQ_KEY="M2"), "readers"):
                raise KeyError("x")
        async with connect(server.namesrv) as mq:
            records = await stored(mq, "RMQ_SYS_TRACE_TOPIC")
            traces = [trace for record in records for trace in decode_traces(record.body)]
            pubs = [one for one in traces if isinstance(one, PubTrace)]
            first = next(one for one in pubs if one.msg_id == receipt.msg_id)
            assert (first.group, first.topic, first.tags, first.keys) == ("tracer", "Traced", "t", "k1 k2")
            assert (first.body_bytes, first.success, first.msg_type) == (5, True, 0)
            assert first.offset_msg_id == receipt.offset_msg_id and first.store_host == server.broker_addr
            assert sorted((one.msg_type, one.success) for one in pubs) == [
                (0, False),
                (0, True),
                (1, True),
                (3, True),
            ]
            (end,) = [one for one in traces if isinstance(one, EndTransactionTrace)]
            assert (end.state, end.msg_id) == ("COMMIT_MESSAGE", tx.receipts[0].msg_id)
            before = {one.msg_id: one for one in traces if isinstance(one, SubBeforeTrace)}
            after = {one.msg_id: one for one in traces if isinstance(one, SubAfterTrace)}
            assert before["M1"].request_id == after["M1"].request_id
            assert (after["M1"].success, after["M2"].success) == (True, False)
            assert after["M1"].cost_ms >= 9 and before["M1"].group == "readers"
            keys = " ".join(record.properties["KEYS"] for record in records).split()
            assert {receipt.msg_id, "k1", "k2", "M1", "k9"} <= set(keys)

    run(main)


def test_traces_that_cannot_be_stored_are_counted_and_nothing_else_happens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        trace = MessageTrace()
        async with connect("127.0.0.1:1", timeout=0.2, interceptors=[trace]):
            with Interceptors([trace]).handling(message(UNIQ_KEY="M1"), "g"):
                pass
        assert trace.dropped == 2

    run(main)
    assert "2 message traces are lost" in caplog.text


def test_spans_of_sender_and_handler_are_one_trace(server: ServerProcess) -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from orbitmq.client.opentelemetry import OpenTelemetry

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = OpenTelemetry(tracer_provider=provider)

    async def main() -> None:
        async with connect(server.namesrv, interceptors=[spans]) as mq:
            producer = mq.producer("spanned", compression=None)
            receipt = await producer.send("Spanned", b"x")
            (record,) = await stored(mq, "Spanned")
            with Interceptors([spans]).handling(message(**record.properties), "readers"):
                pass
            with pytest.raises(Refused):
                await producer.send("Spanned", b"x" * 200_000)
            publish, process, failed = exporter.get_finished_spans()
            assert (publish.name, process.name) == ("publish Spanned", "process T")
            assert publish.context and process.parent
            assert process.parent.span_id == publish.context.span_id
            assert publish.attributes and publish.attributes["messaging.message.id"] == receipt.msg_id
            assert failed.status.status_code.name == "ERROR"

    run(main)


def test_without_opentelemetry_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from orbitmq.client.opentelemetry import OpenTelemetry

    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(BadRequest, match="opentelemetry-api is not installed") as caught:
        OpenTelemetry()
    assert "pip install" in caught.value.hint
