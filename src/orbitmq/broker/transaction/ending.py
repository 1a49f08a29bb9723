"""END_TRANSACTION: a producer says how a transaction ended."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from orbitmq.broker import redraft
from orbitmq.broker.transaction import half_batch, records
from orbitmq.broker.transaction.begun import BegunCommits
from orbitmq.broker.transaction.ledger import Half, Ledger, Outcome
from orbitmq.net.errors import RequestError
from orbitmq.store.durability import Durable
from orbitmq.wire import topics as names
from orbitmq.wire.codes import ResponseCode, SysFlag
from orbitmq.wire.command import Command, encode
from orbitmq.wire.headers import EndTransactionHeader, parse
from orbitmq.wire.properties import Prop

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.broker.send import Draft
    from orbitmq.net.connection import Connection
    from orbitmq.store.inner_message import InnerMessage
    from orbitmq.wire.message import Message

log = logging.getLogger("orbitmq.transaction")


class HasLedger(Protocol):
    @property
    def ledger(self) -> Ledger: ...

    @property
    def begun(self) -> BegunCommits: ...


class EndHandler:
    def __init__(self, broker: Broker, room: HasLedger) -> None:
        self._broker = broker
        self._room = room

    def handle(self, conn: Connection, command: Command) -> Command | None:
        try:
            return self._handle(conn, command)
        except RequestError as error:
            # Producers send this without waiting for an answer: what is refused would be seen by nobody.
            log.warning("END_TRANSACTION of %s refused: %s", conn.peer, error.remark)
            raise

    def _handle(self, conn: Connection, command: Command) -> Command | None:
        header = parse(EndTransactionHeader, command.ext)
        broker = self._broker
        if broker.config.is_slave:
            raise RequestError(
                ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave: end the transaction at its master"
            )
        if header.commit_or_rollback == SysFlag.TX_NONE:
            log.debug("%s does not know yet how %s ends: %s", conn.peer, header.msg_id, command.remark)
            return command.reply()
        outcome = records.OUTCOMES.get(header.commit_or_rollback)
        if outcome is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"commitOrRollback is {header.commit_or_rollback}; it must be 8 (commit), 12 (roll back) "
                "or 0 (not known yet)",
            )
        if broker.store.refusal:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, broker.store.refusal)
        begun = self._room.begun
        begun.complete()
        message = self.half_message(header)
        ledger = self._room.ledger
        standing = ledger.find(message.queue_offset)
        if standing is None:
            standing = ledger.moved_before(records.half_of(message).identity)
        if standing is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"transaction {header.msg_id} is no longer open: it ended long ago or was given up "
                f"(see {names.TRANS_CHECK_MAX_TIME_TOPIC})",
            )
        if isinstance(standing, Outcome):
            begun.check(message)
            if standing is not outcome and standing is not Outcome.ENDED:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR, f"transaction {header.msg_id} was {standing.value} before"
                )
            end = broker.store.log.position
        else:
            end = self._end(message, standing, outcome)
        reply = command.reply()
        if command.is_oneway:
            return None

        def durable(result: Durable) -> None:
            if result is Durable.FAILED:
                conn.send(
                    encode(
                        command.reply(
                            ResponseCode.SERVICE_NOT_AVAILABLE,
                            remark="flushing the log failed; the broker is read-only",
                        )
                    )
                )
            else:
                conn.send(encode(reply))

        broker.store.when_durable(end, durable)
        return None

    def half_message(self, header: EndTransactionHeader) -> Message:
        """The half message that the header names; every number in it comes from outside."""
        message = redraft.message_at(self._broker.store, header.commit_log_offset)
        if message is None or message.topic != names.HALF_TOPIC:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                "Find prepared transaction message failed: there is none at log offset "
                f"{header.commit_log_offset}; it may have been cleaned by age",
            )
        if message.properties.get(Prop.PRODUCER_GROUP) != header.producer_group:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The producer group wrong: the message was prepared by "
                f"{message.properties.get(Prop.PRODUCER_GROUP)}, not by {header.producer_group}",
            )
        if message.queue_offset != header.tran_state_table_offset:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The transaction state table offset wrong: it is {message.queue_offset}, "
                f"not {header.tran_state_table_offset}",
            )
        return message

    def _end(self, message: Message, half: Half, outcome: Outcome) -> int:
        """Writes real and op messages in this order with one commit; where they end in the log."""
        broker = self._broker
        store = broker.store
        written: list[InnerMessage] = []
        draft: Draft | None = None
        messages = 0
        if outcome is Outcome.COMMITTED:
            target = records.real_queue(message)
            if target is None:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR,
                    "the half message does not tell its topic (REAL_TOPIC, REAL_QID)",
                )
            if half_batch.is_batch(message.properties):
                written += half_batch.messages(message, *target, half.log_offset)
            else:
                if redraft.asks_for_delay(message.properties):
                    draft = self._delayed(records.real_draft(message, *target, half.log_offset))
                real = records.real(message, *target, half.log_offset) if draft is None else draft.finish()
                written.append(real)
            messages = len(written)
        # The producer may know the transaction by an offset it had earlier: both are over.
        offsets = list(dict.fromkeys((half.queue_offset, message.queue_offset)))
        written += [records.op(offset, broker.clock(), store.settings.store_host) for offset in offsets]
        try:
            places, end = redraft.put_all(store, written)
        except OSError as error:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"the store cannot write: {error}"
            ) from error
        for offset, place in zip(offsets, places[-len(offsets) :], strict=True):
            self._room.ledger.ended(offset, outcome, place.queue_offset)
        if outcome is Outcome.COMMITTED:
            broker.stats.put(written[0].topic, messages, len(message.body))
        if draft is not None:
            redraft.stored(draft, places[0])
        return end

    def _delayed(self, draft: Draft) -> Draft | None:
        try:
            redraft.delay(self._broker, draft)
        except RequestError as error:
            # Checked when it was prepared, so the limits have changed since; committed is committed.
            unique_id = draft.properties.get(Prop.UNIQ_KEY)
            log.warning("message %s is delivered without its delay: %s", unique_id, error.remark)
            return None
        return draft
