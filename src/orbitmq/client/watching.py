"""How a producer tells its interceptors: before each message, and after its receipt or error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from orbitmq.client.batching import PartlySent
from orbitmq.client.cluster import Clock
from orbitmq.client.outgoing import Out, check_body
from orbitmq.client.receipt import Receipt
from orbitmq.client.tracing import Interceptors, Sending

SendAll = Callable[[list[bytes | Out]], Awaitable[list[Receipt]]]


class Watch:
    """False when nobody watches: hot paths ask that and go on."""

    def __init__(self, group: str, clock: Clock, interceptors: Interceptors) -> None:
        self.interceptors = interceptors
        self._group = group
        self._clock = clock

    def __bool__(self) -> bool:
        return bool(self.interceptors.members)

    def before(
        self,
        topic: str,
        body: bytes,
        tag: str | None,
        keys: str | Sequence[str] | None,
        properties: Mapping[str, str] | None,
        *,
        delayed: bool = False,
        transactional: bool = False,
        msg_id: str | None = None,
    ) -> Sending:
        """Tells the interceptors, and gives what they have made of the properties."""
        key_list = (keys,) if isinstance(keys, str) else tuple(keys or ())
        sending = Sending(
            self._group,
            topic,
            body,
            tag,
            key_list,
            dict(properties or {}),
            self._clock(),
            delayed,
            transactional,
            msg_id,
        )
        self.interceptors.before_send(sending)
        return sending

    async def around(self, sending: Sending, work: Awaitable[Receipt]) -> Receipt:
        """Waits for the receipt and tells how it ended."""
        try:
            receipt = await work
        except BaseException as error:
            self.interceptors.after_send(sending, None, error)
            raise
        self.interceptors.after_send(sending, receipt, None)
        return receipt

    def posted(self, sending: Sending, future: asyncio.Future[Receipt]) -> None:
        """Tells how a posted message ended, once it has."""

        def ended(done: asyncio.Future[Receipt]) -> None:
            error = asyncio.CancelledError() if done.cancelled() else done.exception()
            self.interceptors.after_send(sending, None if error else done.result(), error)

        future.add_done_callback(ended)

    async def many(self, topic: str, messages: Sequence[bytes | Out], send_all: SendAll) -> list[Receipt]:
        """Each message of many is told on its own."""
        sendings: list[Sending] = []
        outs: list[bytes | Out] = []
        for message in messages:
            out = message if isinstance(message, Out) else Out(body=check_body(message))
            sendings.append(self.before(topic, out.body, out.tag, out.keys, out.properties))
            outs.append(msgspec.structs.replace(out, properties=sendings[-1].properties))
        receipts: Sequence[Receipt | None] = ()
        failure: BaseException | None = None
        try:
            sent = receipts = await send_all(outs)
            return sent
        except PartlySent as error:
            receipts, failure = error.receipts, error
            raise
        except BaseException as error:
            receipts, failure = [None] * len(sendings), error
            raise
        finally:
            for sending, receipt in zip(sendings, receipts, strict=True):
                self.interceptors.after_send(sending, receipt, None if receipt else failure)
