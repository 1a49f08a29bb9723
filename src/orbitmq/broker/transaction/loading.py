"""Filling the ledger from the half and op queues when the broker starts.

Reading begins at the progress that the group CID_RMQ_SYS_TRANS has stored, as the Java broker does it, so
either can take over the other's directory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.broker.redraft import message_at
from orbitmq.broker.transaction import half_batch
from orbitmq.broker.transaction.ledger import Half, Ledger, Outcome
from orbitmq.broker.transaction.records import HALF_QUEUE, half_of, parse_op, real_queue
from orbitmq.store.consume_queue import UNIT
from orbitmq.wire import topics as names
from orbitmq.wire.batch import MAX_HALF_BATCH
from orbitmq.wire.codes import SysFlag

if TYPE_CHECKING:
    from orbitmq.broker.offsets import OffsetTable
    from orbitmq.store.consume_queue import ConsumeQueue
    from orbitmq.store.message_store import MessageStore
    from orbitmq.wire.message import Message

log = logging.getLogger("orbitmq.transaction")

UNITS_AT_ONCE: Final = 512
# Ops before the progress are not needed to know what is open, only to recognise a repeated commit.
EXTRA_OPS: Final = 5000
# A real message without its op can only be among the last that were written before a crash; or a whole batch of them.
DELIVERED_SEARCH: Final = 2 * MAX_HALF_BATCH


class Delivered(NamedTuple):
    """An open half message whose real message is in the log, or some of a batch; `unique_keys` tells which."""

    half: Half
    unique_keys: set[bytes]


class Replay:
    """The records of both queues, in their order, become a ledger. Pure."""

    def __init__(self, first_half: int) -> None:
        self.ledger = Ledger()
        self.ledger.next_half = first_half
        self._twins: dict[int, list[Half]] = {}

    def half(self, half: Half) -> None:
        twins = self._twins.setdefault(half.identity, [])
        earlier = _written_again(half, twins)
        if earlier is None:
            self.ledger.stored(half)
        else:
            twins.remove(earlier)
            self.ledger.moved(earlier.queue_offset, half)
        twins.append(half)

    def op(self, half_offsets: list[int], op_offset: int | None) -> None:
        """To be called when all half messages are there; without an offset for those before the progress."""
        for half_offset in half_offsets:
            self.ledger.ended(half_offset, Outcome.ENDED, op_offset)


class Loader:
    def __init__(self, store: MessageStore, offsets: OffsetTable) -> None:
        self._store = store
        self._offsets = offsets
        self._ledger = Ledger()
        self._by_log_offset: dict[int, int] = {}
        self._real: dict[tuple[str, int], int] = {}
        self.clamped = False
        """The stored progress was ahead of the queues: a crash took what it stood for."""

    def load(self) -> Ledger:
        halves = self._store.find_queue(names.HALF_TOPIC, HALF_QUEUE)
        replay = Replay(self._start(halves))
        if halves is not None:
            self._load_halves(halves, replay)
        ops = self._store.find_queue(names.OP_TOPIC, HALF_QUEUE)
        if ops is not None:
            self._load_ops(ops, replay)
        self._ledger = replay.ledger
        return replay.ledger

    def _start(self, queue: ConsumeQueue | None) -> int:
        if queue is None:
            return 0
        progress = self._offsets.query(names.TRANSACTION_GROUP, queue.topic, HALF_QUEUE)
        if progress > queue.max_offset:
            self.clamped = True
        return min(max(progress, queue.min_offset), queue.max_offset)

    def _load_halves(self, queue: ConsumeQueue, replay: Replay) -> None:
        for message in self._messages(queue, replay.ledger.next_half):
            half = half_of(message)
            self._by_log_offset[half.log_offset] = half.queue_offset
            target = real_queue(message)
            if target is not None:
                self._real[target] = min(message.store_ms, self._real.get(target, message.store_ms))
            replay.half(half)
        replay.ledger.next_half = queue.next_offset

    def _load_ops(self, queue: ConsumeQueue, replay: Replay) -> None:
        start = self._start(queue)
        for message in self._messages(queue, max(queue.min_offset, start - EXTRA_OPS)):
            ended = parse_op(message)
            if ended is None:
                log.warning("op message %d is not understood and is passed over", message.queue_offset)
                continue
            replay.op(ended, message.queue_offset if message.queue_offset >= start else None)
        replay.ledger.next_op = queue.next_offset

    def delivered(self) -> list[Delivered]:
        """Open half messages whose real message is there: a crash came between that and the op message."""
        found: dict[int, Delivered] = {}
        for (topic, queue_id), since_ms in self._real.items():
            queue = self._store.find_queue(topic, queue_id)
            if queue is None or not self._ledger.open:
                continue
            first = max(queue.min_offset, queue.max_offset - DELIVERED_SEARCH)
            for message in self._messages(queue, first):
                if message.store_ms < since_ms or message.sys_flag & SysFlag.TX_MASK != SysFlag.TX_COMMIT:
                    continue
                offset = self._by_log_offset.get(message.prepared_offset)
                half = None if offset is None else self._ledger.find(offset)
                if isinstance(half, Half):
                    delivered = found.setdefault(half.queue_offset, Delivered(half, set()))
                    delivered.unique_keys.add(half_batch.unique_key(message.properties_raw))
        return list(found.values())

    def _messages(self, queue: ConsumeQueue, offset: int) -> Iterator[Message]:
        while offset < queue.max_offset:
            units = queue.read_units(offset, UNITS_AT_ONCE)
            if not units:
                offset = queue.next_file_offset(offset)
                continue
            for position, _, _ in UNIT.iter_unpack(units):
                message = message_at(self._store, position)
                if message is None or message.topic != queue.topic:
                    log.error(
                        "message %d of %s cannot be read and is passed over; "
                        "run `orbitmq store verify` on the stopped store",
                        offset,
                        queue.topic,
                    )
                else:
                    yield message
                offset += 1


def _written_again(half: Half, twins: list[Half]) -> Half | None:
    """Which of the earlier records of the same message this one replaces.

    Two sends of one message object look alike as well, so only a record that says it is a repetition counts.
    """
    if half.first_offset is not None:
        for twin in twins:
            if half.first_offset in (twin.queue_offset, twin.first_offset):
                return twin
    if half.checks:
        for twin in twins:
            if twin.checks < half.checks:
                return twin
    return None
