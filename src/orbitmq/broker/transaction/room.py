"""Where transactions meet the store, the producers and the clock."""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from orbitmq.broker import redraft
from orbitmq.broker.persist import OFFSETS
from orbitmq.broker.room import Room
from orbitmq.broker.transaction import half_batch, records
from orbitmq.broker.transaction.begun import BegunCommits, may_write
from orbitmq.broker.transaction.ending import EndHandler
from orbitmq.broker.transaction.lane import END_HEAD, Lane
from orbitmq.broker.transaction.ledger import Half, Ledger, Outcome, Round, Rules, Step, is_over
from orbitmq.broker.transaction.listing import list_halves
from orbitmq.broker.transaction.loading import Loader
from orbitmq.net.errors import RequestError
from orbitmq.store.durability import Durable
from orbitmq.wire import topics as names
from orbitmq.wire.codes import OrbitCode, RequestCode, ResponseCode, SysFlag
from orbitmq.wire.errors import WireError
from orbitmq.wire.headers import ResumeCheckHeader, parse
from orbitmq.wire.message_id import parse_offset_msg_id
from orbitmq.wire.properties import MAX_PROPERTIES_BYTES, Prop, encode_properties

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.broker.send import Draft
    from orbitmq.broker.timers import Timers
    from orbitmq.net.connection import Connection
    from orbitmq.net.service import Handler
    from orbitmq.store.inner_message import InnerMessage
    from orbitmq.wire.command import Command
    from orbitmq.wire.message import Message

log = logging.getLogger("orbitmq.transaction")

TICK_S: Final = 0.5
# A round is done in slices, so that ten thousand open transactions do not hold up clients.
SLICE_STEPS: Final = 64
SLICE_BYTES: Final = 2 << 20
SLICE_PAUSE_S: Final = 0.005
CLEAR_AT_ONCE: Final = 256
CLEAR_BYTES: Final = 8 << 20


class Work(NamedTuple):
    """One step of a round with the records it reads and writes."""

    step: Step
    half: Half
    message: Message
    draft: Draft
    stored: InnerMessage


class Transactions(Room):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.ledger = Ledger()
        self._ends = EndHandler(broker, self)
        self._round: Round | None = None
        self._last_round_ms = 0
        self._slice: asyncio.TimerHandle | None = None
        self.begun = BegunCommits(broker, self.ledger)
        self._clear_before = 0
        self._cleared_to = 0
        broker.store.cleaner.guards.append(self._may_go)
        broker.store.before_writes.append(lambda: self.begun.complete())

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.END_TRANSACTION: self._ends.handle,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume,
            OrbitCode.LIST_HALF_MESSAGES: self.list_open,
        }

    def divert(self, draft: Draft) -> None:
        kind = draft.sys_flag & SysFlag.TX_MASK
        prepared = kind == SysFlag.TX_PREPARED
        if not prepared and draft.properties.get(Prop.TRANSACTION_PREPARED, "").lower() != "true":
            # Only END_TRANSACTION makes a message a committed one.
            draft.sys_flag &= ~SysFlag.TX_MASK
            return
        if draft.topic.startswith((names.RETRY_PREFIX, names.DEAD_PREFIX)):
            # A copy that a consumer sends for another try; its transaction is long over.
            draft.sys_flag &= ~SysFlag.TX_MASK
            return
        config = self._broker.config
        if config.reject_transaction_message:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"the broker[{config.broker_ip1}] sending transaction message is forbidden "
                "(rejectTransactionMessage=true)",
            )
        if not draft.properties.get(Prop.PRODUCER_GROUP):
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                "a transactional message needs the property PGROUP: nobody could be asked how it ended",
            )
        if half_batch.is_batch(draft.properties):
            half_batch.check(draft, self._broker.store.settings.commit_log_file_bytes)
        redraft.check_delay(self._broker, draft)
        if not records.prepare(draft):
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                "the properties of a transactional message are too long; move large values into the body",
            )
        longest = len(draft.body) + MAX_PROPERTIES_BYTES
        if longest > self._broker.store.settings.commit_log_file_bytes // 2:
            text_bytes = len(encode_properties(draft.properties)) + records.LATER_PROPERTY_BYTES
            redraft.check_size(self._broker.store, len(draft.body) + text_bytes)
        self._need_topic(names.HALF_TOPIC)
        draft.after_store.append(lambda log_offset, offset: self._stored(draft, log_offset, offset))

    def _stored(self, draft: Draft, log_offset: int, queue_offset: int) -> None:
        store_ms = self._broker.store.log.store_ms
        self.ledger.stored(records.half_of_draft(draft, log_offset, queue_offset, store_ms))

    def _need_topic(self, name: str) -> None:
        broker = self._broker
        if broker.topics.get(name) is None:
            broker.topics.create_internal(name, 1, broker.clock())
            broker.register_soon(name)

    def start(self, timers: Timers) -> None:
        broker = self._broker
        loader = Loader(broker.store, broker.offsets)
        self.ledger = loader.load()
        if loader.clamped:
            # The next messages get offsets below the stored progress: it has to be right before they come.
            self._save_progress()
            broker.tables.save(OFFSETS)
        self.begun = BegunCommits(broker, self.ledger, () if broker.config.is_slave else loader.delivered())
        self.begun.complete()
        if self.ledger.open:
            log.info("%d transactions are open", len(self.ledger.open))
        self._last_round_ms = broker.clock()
        lane = Lane(broker, self.ledger, self._ends)
        broker.gateway.add_hot(END_HEAD, lane.end)
        broker.gateway.hot_send.prepared = lane.half
        timers.every(TICK_S, self.tick, "transactions")

    def stop(self) -> None:
        if self._slice is not None:
            self._slice.cancel()
            self._slice = None
        self._save_progress()

    def tick(self) -> None:
        """Saves the progress, and begins or goes on with a round of questions."""
        self.begun.complete()
        self._save_progress()
        broker = self._broker
        if self._clear_before:
            self._clear()
        if broker.config.is_slave or broker.store.refusal or self._slice is not None:
            return
        now_ms = broker.clock()
        if self._round is None:
            if now_ms - self._last_round_ms < broker.config.transaction_check_interval:
                return
            self._last_round_ms = now_ms
            self._round = Round(self.ledger)
        self._go_on()

    def time_has_passed(self) -> bool:
        self.tick()
        return False  # a round goes on by itself, in slices

    def _save_progress(self) -> None:
        """Never past what readers may see: a stored progress must not be ahead of the queues."""
        if self.begun.waiting:
            return
        broker = self._broker
        for topic, offset in zip((names.HALF_TOPIC, names.OP_TOPIC), self.ledger.progress(), strict=True):
            queue = broker.store.find_queue(topic, records.HALF_QUEUE)
            if queue is not None:
                broker.offsets.commit(
                    names.TRANSACTION_GROUP, topic, records.HALF_QUEUE, min(offset, queue.max_offset)
                )

    def _may_go(self, log_end: int) -> bool:
        """A log file stays while it holds an open transaction; `tick` takes those along."""
        if self._broker.config.is_slave:
            return True
        if self.begun.needs(log_end):
            return False
        first = next(iter(self.ledger.open.values()), None)
        if first is None or first.log_offset >= log_end:
            written_to = max(self._cleared_to, self.begun.written_to)
            return written_to <= self._broker.store.durability.offset
        self._clear_before = max(self._clear_before, log_end)
        return False

    def _clear(self) -> None:
        """Also on a disk so full that clients are refused: what is written here lets more go than it takes."""
        store = self._broker.store
        if not may_write(store.refusal):
            return
        old: list[Half] = []
        taken_bytes = 0
        for half in islice(self.ledger.open.values(), CLEAR_AT_ONCE):
            if half.log_offset >= self._clear_before or taken_bytes > CLEAR_BYTES:
                break
            old.append(half)
            taken_bytes += half.body_bytes
        if not old:
            self._clear_before = 0
            return
        now_ms, rules = self._broker.clock(), self._rules()
        self._do([(Step.GIVE_UP if is_over(half, now_ms, rules) else Step.CARRY, half) for half in old])
        self._cleared_to = store.log.position

    def _rules(self) -> Rules:
        config = self._broker.config
        return Rules(
            config.transaction_time_out, config.transaction_check_max, config.file_reserved_time * 3_600_000
        )

    def _go_on(self) -> None:
        self._slice = None
        current = self._round
        broker = self._broker
        if current is None or broker.store.refusal:
            return
        asked_groups: dict[str, bool] = {}

        def online(group: str) -> bool:
            if group not in asked_groups:
                asked_groups[group] = any(not c.conn.closed for c in broker.clients.producer_group(group))
            return asked_groups[group]

        self._do(current.steps(broker.clock(), self._rules(), online, SLICE_STEPS, SLICE_BYTES))
        if current.done:
            self._round = None
        else:
            self._slice = asyncio.get_running_loop().call_later(SLICE_PAUSE_S, self._go_on)

    def _do(self, steps: list[tuple[Step, Half]]) -> None:
        """Writes everything a slice needs with one commit, then asks the producers."""
        store = self._broker.store
        work: list[Work] = []
        for step, half in steps:
            message = redraft.message_at(store, half.log_offset)
            if message is None or message.topic != names.HALF_TOPIC:
                log.error("half message %d is gone from the log, it cannot be committed", half.queue_offset)
                self.ledger.lost(half.queue_offset)
                continue
            try:
                work.append(Work(step, half, message, *_next_form(step, half, message)))
            except RequestError:
                # Written by another broker, with properties that leave no room for one more.
                work.append(Work(Step.GIVE_UP, half, message, *_next_form(Step.GIVE_UP, half, message)))
        if not work:
            return
        try:
            places, end = redraft.put_all(store, [item.stored for item in work])
        except (OSError, RequestError) as error:
            log.warning("open transactions are asked for later, the store cannot write: %s", error)
            return
        questions: list[tuple[str, Command]] = []
        for (step, half, message, draft, _), place in zip(work, places, strict=True):
            if step is Step.GIVE_UP:
                self._give_up(half, message)
                continue
            moved = records.half_of_draft(draft, place.log_offset, place.queue_offset, store.log.store_ms)
            moved.since_ms = half.since_ms
            self.ledger.moved(half.queue_offset, moved)
            if step is Step.CHECK:
                question = records.check_command(message, moved, draft.properties, store.settings.store_host)
                questions.append((half.group, question))
        store.when_durable(end, lambda outcome: self._ask(questions, outcome))

    def _give_up(self, half: Half, message: Message) -> None:
        self.ledger.gave_up(half.queue_offset)
        self._need_topic(names.TRANS_CHECK_MAX_TIME_TOPIC)
        log.error(
            "transaction %s of producer group %s was not ended after %d questions and %d s; it is in %s now",
            message.msg_id,
            half.group,
            half.checks,
            (self._broker.clock() - half.since_ms) // 1000,
            names.TRANS_CHECK_MAX_TIME_TOPIC,
        )

    def _ask(self, questions: list[tuple[str, Command]], outcome: Durable) -> None:
        if outcome is Durable.FAILED:
            return
        for group, question in questions:
            producer = self._broker.clients.pick_producer(group)
            if producer is None:
                log.info("producer group %s went away before it could be asked", group)
            else:
                producer.conn.oneway(question)

    def list_open(self, conn: Connection, command: Command) -> Command:
        return list_halves(self._broker, self.ledger, command)

    def resume(self, conn: Connection, command: Command) -> Command:
        """RESUME_CHECK_HALF_MESSAGE: asks again, from the first question on, for one that was put aside."""
        header = parse(ResumeCheckHeader, command.ext)
        broker = self._broker
        store = broker.store
        if broker.config.is_slave:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "this broker is a slave: ask its master")
        if store.refusal:
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, store.refusal)
        try:
            log_offset = parse_offset_msg_id(header.msg_id or "")[2]
        except WireError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        message = redraft.message_at(store, log_offset)
        if (
            message is None
            or message.topic not in (names.TRANS_CHECK_MAX_TIME_TOPIC, names.HALF_TOPIC)
            or records.real_queue(message) is None
            or not message.properties.get(Prop.PRODUCER_GROUP)
        ):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"there is no half message at log offset {log_offset}; give the offset id of a message in "
                f"{names.TRANS_CHECK_MAX_TIME_TOPIC}",
            )
        standing = self.ledger.same_message(records.half_of(message).identity)
        if message.topic == names.HALF_TOPIC and standing is None:
            standing = self.ledger.find(message.queue_offset)
            if standing is None:
                standing = Outcome.ENDED
        if isinstance(standing, Outcome):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"this transaction is over ({standing.value}): nothing to ask for"
            )
        is_open = standing is not None and standing.queue_offset in self.ledger.open
        first_offset = standing.queue_offset if standing is not None and is_open else None
        draft = records.again(message, checks=0, first_offset=first_offset)
        if first_offset is None:
            draft.properties.pop(Prop.TRANSACTION_PREPARED_QUEUE_OFFSET, None)
        self._need_topic(names.HALF_TOPIC)
        result = store.put(draft.finish())
        half = records.half_of_draft(draft, result.position, result.queue_offset, result.store_ms)
        if standing is not None:
            self.ledger.moved(standing.queue_offset, half)
        else:
            self.ledger.stored(half)
        return command.reply()


def _next_form(step: Step, half: Half, message: Message) -> tuple[Draft, InnerMessage]:
    """How a half message goes on: written again with one more question, taken along, or put aside."""
    first_offset = half.queue_offset if half.first_offset is None else half.first_offset
    if step is Step.GIVE_UP:
        draft = records.put_aside(message)
    elif step is Step.CARRY:
        draft = records.again(message, first_offset=first_offset)
    else:
        # Without an id of its own only its first offset tells, after a crash, that it is the same message.
        anonymous = Prop.UNIQ_KEY not in message.properties
        draft = records.again(
            message, checks=half.checks + 1, first_offset=first_offset if anonymous else None
        )
    return draft, draft.finish()
