"""Answers brokers that ask what became of a prepared message.

What this producer still remembers it answers by itself: a transaction whose block is running is "unknown, ask
later", one that ended is as it ended. Anything else, above all the transactions of a process that died, is for the
check handler, which looks into the database.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Final

from orbitmq.client.message import Message
from orbitmq.client.tracing import Interceptors, Settling
from orbitmq.net.channel import Channel
from orbitmq.wire.codes import RequestCode, SysFlag
from orbitmq.wire.command import Command, request
from orbitmq.wire.headers import CheckTransactionHeader, EndTransactionHeader, parse, to_ext
from orbitmq.wire.properties import Prop

log = logging.getLogger("orbitmq.client")

# Decisions that a broker did not take yet; it asks within minutes, so older ones are of no use.
MOST_REMEMBERED: Final = 10_000


class TxState(IntEnum):
    """The numbers are those of the wire."""

    UNKNOWN = SysFlag.TX_NONE
    COMMIT = SysFlag.TX_COMMIT
    ROLLBACK = SysFlag.TX_ROLLBACK


Verdict = bool | TxState | None
"""True or COMMIT, False or ROLLBACK; None or UNKNOWN has the broker ask again later."""
Check = Callable[[Message], "Verdict | Awaitable[Verdict]"]
"""Gets the prepared message; `transaction_id_of(message)` is what the block called `tx.id`."""


def transaction_id_of(message: Message) -> str:
    """The id of the transaction that a prepared message belongs to."""
    return message.properties.get(Prop.TRANSACTION_ID) or message.msg_id


class CheckBack:
    """The memory of one producer, and its handler."""

    def __init__(self, group: str, interceptors: Interceptors) -> None:
        self.group = group
        self.handler: Check | None = None
        self._interceptors = interceptors
        self._states: dict[str, TxState] = {}

    def open(self, transaction_id: str) -> None:
        self._states[transaction_id] = TxState.UNKNOWN

    def decided(self, transaction_id: str, state: TxState) -> None:
        self._states.pop(transaction_id, None)
        self._states[transaction_id] = state
        while len(self._states) > MOST_REMEMBERED:
            oldest = next((one for one, known in self._states.items() if known is not TxState.UNKNOWN), None)
            if oldest is None:
                return
            del self._states[oldest]

    def settled(self, transaction_id: str) -> None:
        """Every broker has taken the decision, so none will ask."""
        self._states.pop(transaction_id, None)

    def serve(self, channel: Channel, command: Command) -> Awaitable[Command | None] | None:
        """CHECK_TRANSACTION_STATE; None when the message belongs to another group."""
        message = Message(command.body, 0, "", None)
        if message.properties.get(Prop.PRODUCER_GROUP) != self.group:
            return None
        return self._answer(channel, command, message)

    async def _answer(self, channel: Channel, command: Command, message: Message) -> Command | None:
        transaction_id = transaction_id_of(message)
        known = self._states.get(transaction_id)
        state = await self._ask_handler(message) if known is None else known
        if state is None:
            return None
        asked = parse(CheckTransactionHeader, command.ext, command.code)
        header = EndTransactionHeader(
            producer_group=self.group,
            tran_state_table_offset=asked.tran_state_table_offset,
            commit_log_offset=asked.commit_log_offset,
            commit_or_rollback=state.value,
            msg_id=message.msg_id,
            from_transaction_check=True,
            transaction_id=asked.transaction_id,
            topic=message.topic,
        )
        channel.oneway(request(RequestCode.END_TRANSACTION, to_ext(header)))
        self._interceptors.after_settling(
            Settling(
                self.group, message.topic, message.msg_id, message.offset_msg_id, state.name, from_check=True
            )
        )
        return None

    async def _ask_handler(self, message: Message) -> TxState | None:
        """None: there is no handler, and another producer of the group may know better."""
        if self.handler is None:
            log.warning(
                "a broker asks for message %s of topic '%s', and the producer group '%s' has no check handler here",
                message.msg_id,
                message.topic,
                self.group,
            )
            return None
        try:
            verdict = self.handler(message)
            if inspect.isawaitable(verdict):
                verdict = await verdict
        except Exception:
            log.exception("the check handler of group '%s' failed for message %s", self.group, message.msg_id)
            return TxState.UNKNOWN
        return _state_of(verdict)


def _state_of(verdict: object) -> TxState:
    if isinstance(verdict, TxState):
        return verdict
    if verdict is None:
        return TxState.UNKNOWN
    if isinstance(verdict, bool):
        return TxState.COMMIT if verdict else TxState.ROLLBACK
    log.error("a check handler returned %r; True, False or None are understood, it counts as None", verdict)
    return TxState.UNKNOWN
