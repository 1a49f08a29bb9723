"""Asks the cluster where things are: which queues there are, where they begin and end, which message a time means."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from orbitmq.client.routes import MASTER_ID
from orbitmq.spark.brokers import Brokers, not_registered
from orbitmq.spark.errors import BadOption, BrokerLost, Missing, SourceError, UnknownTopic
from orbitmq.spark.offsets import Named, Offsets
from orbitmq.spark.options import ReadOptions
from orbitmq.spark.subscription import matching
from orbitmq.wire.codes import PullFlag, RequestCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.errors import WireError
from orbitmq.wire.fastjson import MessageQueue
from orbitmq.wire.message import Message, decode_records
from orbitmq.wire.topics import TOOLS_GROUP

log = logging.getLogger("orbitmq.spark")

T = TypeVar("T")

PAUSE_S: Final = 0.5
_FIRST_STEP: Final = 32
_NOTHING: Final = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class Bounds(NamedTuple):
    """The first offset of a queue and the one behind its last."""

    first: int
    end: int
    from_slave: bool = False
    """It may lack what its master had."""


def patiently(work: Callable[[], T], timeout_s: float) -> T:
    """Does it again until it works, as long as trying again can help."""
    give_up = time.monotonic() + timeout_s
    told = ""
    while True:
        try:
            return work()
        except SourceError as error:
            if not error.retryable or time.monotonic() >= give_up:
                raise
            if str(error) != told:
                told = str(error)
                log.warning("%s; trying again for up to %g s", told, timeout_s)
            time.sleep(PAUSE_S)


def find_queues(brokers: Brokers, options: ReadOptions, *, may_be_none: bool = False) -> list[MessageQueue]:
    """The queues that the options name, in one order. A topic or queue that nobody has is an error.

    With `may_be_none` it is left out: its broker may be away.
    """
    if options.pattern is not None:
        topics = matching(brokers.topics(), options.pattern)
    else:
        topics = list(options.topics or dict.fromkeys(name.topic for name in options.assigned))
    found: list[MessageQueue] = []
    for topic in topics:
        route = brokers.find_route(topic, refresh=True)
        if route is not None:
            found += route.read_queues()
        elif options.pattern is None and not may_be_none:
            raise UnknownTopic("assign" if options.assigned else "subscribe", topic)
    if options.assigned:
        found = _assigned(found, options.assigned, may_be_none)
    if not found and not may_be_none:
        name = "subscribePattern" if options.pattern is not None else "subscribe"
        raise BadOption(name, "there is no topic to read", hint="check the names with `orbitmq topic list`")
    return sorted(set(found))


def _assigned(
    found: Sequence[MessageQueue], assigned: Iterable[Named], may_be_none: bool
) -> list[MessageQueue]:
    chosen: list[MessageQueue] = []
    for name in assigned:
        fitting = [
            queue
            for queue in found
            if (queue.topic, queue.queue_id) == (name.topic, name.queue_id)
            and name.broker in (None, queue.broker_name)
        ]
        if not fitting and not may_be_none:
            there = ", ".join(f"{q.broker_name}/{q.queue_id}" for q in found if q.topic == name.topic)
            raise BadOption(
                "assign",
                f"topic {name.topic!r} has no queue {name.queue_id}{f' on {name.broker}' if name.broker else ''}",
                hint=f"its queues are {there}",
            )
        chosen += fitting
    return chosen


def bounds_of(
    brokers: Brokers, queues: Iterable[MessageQueue], on_loss: Callable[[SourceError], None] | None = None
) -> dict[MessageQueue, Bounds]:
    """Where each queue begins and ends.

    With `on_loss`, queues whose broker or topic is away are left out and told.
    """

    def lost(error: SourceError) -> None:
        if on_loss is None:
            raise error
        on_loss(error)

    # By addresses, too: a topic that is gone has none, where others of the same broker have some.
    by_members: dict[tuple[str, tuple[tuple[int, str], ...]], list[MessageQueue]] = {}
    for queue in queues:
        try:
            members = tuple(brokers.members(queue).items())
        except BrokerLost as error:
            lost(error)
        else:
            by_members.setdefault((queue.broker_name, members), []).append(queue)
    found: dict[MessageQueue, Bounds] = {}
    for (_, members), alike in by_members.items():
        try:
            found.update(_bounds_at_one_broker(brokers, members, alike))
        except (BrokerLost, Missing) as error:
            lost(error)
    return found


def _bounds_at_one_broker(
    brokers: Brokers, members: Iterable[tuple[int, str]], queues: Sequence[MessageQueue]
) -> dict[MessageQueue, Bounds]:
    lost: BrokerLost | None = None
    for number, addr in members:
        codes = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
        asked = [(addr, request(code, _queue_ext(queue))) for queue in queues for code in codes]
        try:
            answers = [int(answer.ext["offset"]) for answer in brokers.ask_all(asked)]
        except BrokerLost as error:
            lost = error
            continue
        from_slave = number != MASTER_ID
        pairs = zip(answers[::2], answers[1::2], strict=True)
        return {
            queue: Bounds(first, end, from_slave) for queue, (first, end) in zip(queues, pairs, strict=True)
        }
    raise lost or not_registered(queues[0])


def offsets_at(
    brokers: Brokers, times_ms: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, Bounds]
) -> Offsets:
    """The first message of each queue stored at that time or later; the end where there is none.

    Brokers answer roughly: some give the nearest message, or any of several with one time. So the answer is only
    where to look: the message found must be late enough, and the one before it too early.
    """
    queues = list(times_ms)
    asked = [
        (
            brokers.readable(queue),
            request(
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                {**_queue_ext(queue), "timestamp": str(times_ms[queue])},
            ),
        )
        for queue in queues
    ]
    found: Offsets = {}
    guesses = [int(answer.ext["offset"]) for answer in brokers.ask_all(asked)]
    for queue, guess in zip(queues, guesses, strict=True):
        first, end, _ = bounds[queue]
        found[queue] = _first_late(brokers, queue, times_ms[queue], max(first, min(guess, end)), first, end)
    return found


def _first_late(brokers: Brokers, queue: MessageQueue, time_ms: int, guess: int, first: int, end: int) -> int:
    """Widens steps around the guess until the border lies between two looks, then halves."""

    def late(offset: int) -> bool:
        messages = peek(brokers, queue, offset, 1)
        return bool(messages) and messages[0].store_ms >= time_ms

    low, high = (
        first - 1,
        end,
    )  # `low` is known to be early (or before all), `high` to be late (or behind all)
    step = 1
    if guess < end and not late(guess):
        low, step = guess, _FIRST_STEP
        while low + step < high and not late(low + step):
            low, step = low + step, 2 * step
        high = min(high, low + step)
    else:
        high = guess
        while high - step > low and late(high - step):
            high, step = high - step, _FIRST_STEP if step == 1 else 2 * step
        low = max(low, high - step)
    while high - low > 1:
        middle = (low + high) // 2
        if late(middle):
            high = middle
        else:
            low = middle
    return high


def peek(brokers: Brokers, queue: MessageQueue, offset: int, count: int) -> list[Message]:
    """A few messages from an offset on; none where there are none."""
    answer = brokers.ask(brokers.readable(queue), peek_request(queue, offset, count), *_NOTHING)
    if answer.code != ResponseCode.SUCCESS:
        return []
    try:
        return decode_records(answer.body.tobytes(), check_crc=False)
    except WireError as error:
        raise SourceError(
            f"messages of {queue.topic!r} at offset {offset} cannot be read: {error}"
        ) from error


def peek_request(queue: MessageQueue, offset: int, count: int) -> Command:
    ext = {
        "consumerGroup": TOOLS_GROUP,
        "queueOffset": str(offset),
        "maxMsgNums": str(count),
        "sysFlag": str(PullFlag.SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
        **_queue_ext(queue),
    }
    return request(RequestCode.PULL_MESSAGE, ext)


def mean_sizes(brokers: Brokers, offsets: Offsets) -> dict[MessageQueue, float]:
    """About how many bytes a message has from these places on, told by the few that one pull gives."""
    asked = [(brokers.readable(queue), peek_request(queue, offset, 32)) for queue, offset in offsets.items()]
    means: dict[MessageQueue, float] = {}
    for (queue, offset), answer in zip(offsets.items(), brokers.ask_all(asked, *_NOTHING), strict=True):
        count = int(answer.ext["nextBeginOffset"]) - offset if answer.code == ResponseCode.SUCCESS else 0
        if count > 0 and len(answer.body):
            means[queue] = len(answer.body) / count
    return means


def committed(brokers: Brokers, group: str, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int | None]:
    """Where a group stands; None where it never was."""
    asked = [
        (
            brokers.readable(q),
            request(RequestCode.QUERY_CONSUMER_OFFSET, {**_queue_ext(q), "consumerGroup": group}),
        )
        for q in queues
    ]
    answers = brokers.ask_all(asked, ResponseCode.QUERY_NOT_FOUND)
    return {
        queue: int(answer.ext["offset"]) if answer.code == ResponseCode.SUCCESS else None
        for queue, answer in zip(queues, answers, strict=True)
    }


def commit(brokers: Brokers, group: str, offsets: Offsets) -> None:
    """Reports progress; queues whose master is away are left out, the next report brings them along."""
    asked = [
        (
            master,
            request(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                {**_queue_ext(queue), "consumerGroup": group, "commitOffset": str(offset)},
            ),
        )
        for queue, offset in offsets.items()
        if (master := brokers.master(queue)) is not None
    ]
    brokers.ask_all(asked)


def _queue_ext(queue: MessageQueue) -> dict[str, str]:
    return {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name}
