"""Messages that become visible only with a local transaction: prepared first, then committed or rolled back together.

    async with producer.transaction("orders", b"...") as tx:
        await tx.send("stock", b"...")          # all or none of them
        await save_order(db, tx.id)             # an exception rolls everything back

Between the last line of the block and the commit the process may die. The broker then asks a living producer of the
group, whose check handler looks for `tx.id` in the database; so the id is written there, in the local transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from orbitmq.client.check_back import CheckBack, TxState
from orbitmq.client.core.retry_rules import SendKind
from orbitmq.client.errors import BadRequest, OrbitMQError
from orbitmq.client.fast_send import FrameMaker
from orbitmq.client.outgoing import OrderKey, json_inside, property_text
from orbitmq.client.receipt import Receipt
from orbitmq.client.times import Duration
from orbitmq.client.tracing import Settling
from orbitmq.wire.codes import RequestCode, SysFlag
from orbitmq.wire.command import request
from orbitmq.wire.headers import EndTransactionHeader, to_ext
from orbitmq.wire.message_id import parse_offset_msg_id
from orbitmq.wire.properties import Prop

if TYPE_CHECKING:
    from orbitmq.client.producer import Producer

log = logging.getLogger("orbitmq.client")

END_TRIES: Final = 3


class _Stage(Enum):
    NEW = "not entered yet"
    OPEN = "open"
    ENDED = "ended"


class Transaction:
    """Use it as `async with`; see the module's text."""

    def __init__(self, producer: Producer, check_back: CheckBack, first: dict[str, Any] | None) -> None:
        self.id = producer.client.ids.next_id()
        """Write it into the database with the business change: the check handler looks for it there."""
        self.receipts: list[Receipt] = []
        self.state = TxState.UNKNOWN
        self._producer = producer
        self._check_back = check_back
        self._first = first
        self._stage = _Stage.NEW
        self._rolled_back = False

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        order_key: OrderKey | None = None,
        timeout: Duration | None = None,
    ) -> Receipt:
        """Prepares one more message. It is stored, and nobody sees it before the commit."""
        if self._stage is not _Stage.OPEN:
            raise BadRequest(
                f"the transaction is {self._stage.value}",
                hint="send inside `async with producer.transaction()`",
            )
        producer = self._producer
        timeout_s = producer.timeout_of(timeout)
        desk = await producer.delivery.desk(topic, timeout_s)
        packed, sys_flag = producer.packed(body)
        system = {
            Prop.TRANSACTION_PREPARED: "true",
            Prop.PRODUCER_GROUP: producer.group,
            Prop.TRANSACTION_ID: self.id,
        }
        msg_id = producer.client.ids.next_id()
        watch = producer.watch
        sending = watch.before(topic, body, tag, keys, properties, transactional=True, msg_id=msg_id)
        text = property_text(tag, keys, sending.properties, order_key, system)
        slot = None if order_key is None else desk.of_key(order_key)
        kind = SendKind.AWAITED if slot is None else SendKind.ORDERED
        flags = sys_flag | SysFlag.TX_PREPARED
        work = producer.delivery.deliver(
            FrameMaker.single, desk, slot, kind, msg_id, json_inside(text), flags, packed, timeout_s
        )
        receipt = await watch.around(sending, work)
        self.receipts.append(receipt)
        if not receipt.ok:
            raise OrbitMQError(
                f"a prepared message of transaction {self.id} is only {receipt.durable}",
                hint="the transaction is rolled back; see to the broker's disk and slaves",
                code=None,
                retryable=True,
            )
        # A broker asks the producers it has heard of.
        await producer.client.presence.introduce(producer.delivery.address_of(receipt.broker))
        return receipt

    def rollback(self) -> None:
        """Leaves the block normally and rolls back all the same."""
        self._rolled_back = True

    async def __aenter__(self) -> Self:
        if self._stage is not _Stage.NEW:
            raise BadRequest(f"the transaction is {self._stage.value}", hint="make a new one for each block")
        self._producer.delivery.check_open()
        self._stage = _Stage.OPEN
        self._check_back.open(self.id)
        if self._first is not None:
            try:
                await self.send(**self._first)
            except BaseException:
                await self._end(TxState.ROLLBACK)
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end(TxState.ROLLBACK if error is not None or self._rolled_back else TxState.COMMIT)

    async def _end(self, state: TxState) -> None:
        """Tells every broker. What could not be told is answered when the broker asks."""
        self._stage = _Stage.ENDED
        self.state = state
        self._check_back.decided(self.id, state)
        results = await asyncio.gather(
            *(self._tell(receipt, state) for receipt in self.receipts), return_exceptions=True
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        for failure in failures:
            if not isinstance(failure, OrbitMQError):
                raise failure
            log.warning(
                "transaction %s: %s was not delivered, the broker will ask for it: %s",
                self.id,
                state.name,
                failure,
            )
        if not failures:
            self._check_back.settled(self.id)
        else:  # the broker can only ask who makes itself known, even if no topic leads there any more
            self._producer.client.presence.reach_everyone()

    async def _tell(self, receipt: Receipt, state: TxState) -> None:
        producer = self._producer
        _, _, log_offset = parse_offset_msg_id(receipt.offset_msg_id)
        header = EndTransactionHeader(
            producer_group=producer.group,
            tran_state_table_offset=receipt.queue_offset,
            commit_log_offset=log_offset,
            commit_or_rollback=state.value,
            msg_id=receipt.msg_id,
            from_transaction_check=False,
            transaction_id=self.id,
            topic=receipt.topic,
        )
        for number in range(END_TRIES):
            try:
                await producer.client.cluster.request(
                    producer.delivery.address_of(receipt.broker),
                    request(RequestCode.END_TRANSACTION, to_ext(header)),
                )
                break
            except OrbitMQError as error:
                if number + 1 == END_TRIES or not error.retryable:
                    raise
        producer.watch.interceptors.after_settling(
            Settling(
                producer.group,
                receipt.topic,
                receipt.msg_id,
                receipt.offset_msg_id,
                state.name,
                from_check=False,
            )
        )
