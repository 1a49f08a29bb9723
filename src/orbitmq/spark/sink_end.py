"""Ending half messages: commit or roll back, in order, many in flight, repeated until the broker has answered.

OrbitMQ ends a transaction once: to repeat a commit is always safe there. The Java broker would deliver the message a
second time, so after a lost answer its topic is searched for the message's id first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from typing import Final, NamedTuple

from orbitmq.client.admin.messages import messages_by_id
from orbitmq.client.cluster import Cluster
from orbitmq.client.errors import NotFound, OrbitMQError, Unreachable, from_response
from orbitmq.client.pipelined import Pipe
from orbitmq.spark.sink_batches import BATCH_BYTES
from orbitmq.wire.answer_json import Answer
from orbitmq.wire.codes import OrbitCode, RequestCode, ResponseCode, SysFlag
from orbitmq.wire.command import Command, request
from orbitmq.wire.message import Message, decode_records
from orbitmq.wire.properties import Prop
from orbitmq.wire.topics import SCHEDULE_TOPIC, TIMER_TOPIC

ENDS_AT_ONCE: Final = 512
BYTES_AT_ONCE: Final = 4 << 20
"""What the ends under way make visible: a broker takes all of a read at once, and serves nobody else meanwhile."""
SLICE: Final = 16_384
"""So many are asked for before the failures among them are looked at."""
PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 2.0

Pair = tuple[int, int]

_DELAYS: Final = frozenset({Prop.DELAY, Prop.TIMER_DELAY_SEC, Prop.TIMER_DELAY_MS, Prop.TIMER_DELIVER_MS})


class Abilities(NamedTuple):
    """What a broker can do with transactional messages."""

    native: bool
    """It is OrbitMQ: it ends a transaction only once, lists those that are open, and can delay the messages."""
    half_batch: int
    """How many messages it takes in one half message; 0 when it would take them for one."""


async def abilities(cluster: Cluster, addr: str) -> Abilities:
    command = request(OrbitCode.LIST_HALF_MESSAGES, {"maxNum": "1", "fromOffset": "0"})
    answer = await cluster.request(
        addr, command, accept=(ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    )
    if answer.code != ResponseCode.SUCCESS:
        return Abilities(False, 0)
    said = answer.ext.get("halfBatch", "")
    return Abilities(True, int(said) if said.isdecimal() else 0)


async def is_native(cluster: Cluster, addr: str) -> bool:
    return (await abilities(cluster, addr)).native


Sleep = Callable[[float], Awaitable[None]]


class Ender:
    """Ends half messages of one producer group."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        *,
        retry_timeout_s: float,
        ordered: bool = False,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._retry_timeout_s = retry_timeout_s
        self._ordered = ordered
        self._sleep = sleep

    async def commit(self, broker: str, pairs: Iterable[Pair], *, perhaps_before: bool) -> int:
        """Commits the half messages of one broker in this order; how many there were.

        `perhaps_before` says that an earlier run may have committed some of them.
        """
        return await self._end_all(broker, pairs, SysFlag.TX_COMMIT, perhaps_before)

    async def roll_back(self, broker: str, pairs: Iterable[Pair]) -> int:
        return await self._end_all(broker, pairs, SysFlag.TX_ROLLBACK, False)

    async def _end_all(self, broker: str, pairs: Iterable[Pair], how: int, perhaps_before: bool) -> int:
        addr = await self._cluster.broker_addr(broker)
        native = await is_native(self._cluster, addr)
        # Its processors run side by side, so only one at a time keeps its order.
        one_by_one = self._ordered and not native
        rest = iter(pairs)
        done = 0
        while slice_ := list(islice(rest, SLICE)):
            at_once = 1 if one_by_one else ends_at_once(slice_)
            await self._end_slice(broker, slice_, how, native, perhaps_before, at_once)
            done += len(slice_)
        return done

    async def _end_slice(
        self,
        broker: str,
        pairs: Sequence[Pair],
        how: int,
        native: bool,
        perhaps_before: bool,
        at_once: int,
    ) -> None:
        now = asyncio.get_running_loop().time
        pause_s, give_up_at = PAUSE_S, 0.0
        open_pairs = list(pairs)
        while True:
            if perhaps_before and not native and how == SysFlag.TX_COMMIT:
                open_pairs = [pair for pair in open_pairs if not await self._is_delivered(broker, pair)]
            failed = await self._try(await self._cluster.broker_addr(broker), open_pairs, how, at_once)
            # A broker does not remember for ever how a transaction ended; its message tells.
            failed = [
                (pair, error)
                for pair, error in failed
                if not (perhaps_before and _is_over(error) and await self._is_delivered(broker, pair))
            ]
            if not failed:
                return
            first = failed[0][1]
            give_up_at = give_up_at or now() + self._retry_timeout_s
            lasting = [
                error for _, error in failed if not (error.retryable or isinstance(error, Unreachable))
            ]
            if lasting or now() + pause_s > give_up_at:
                raise lasting[0] if lasting else first
            open_pairs = [pair for pair, _ in failed]
            perhaps_before = True
            await self._sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _try(
        self, addr: str, pairs: Sequence[Pair], how: int, at_once: int
    ) -> list[tuple[Pair, OrbitMQError]]:
        """Asks for the end of each, in this order; those that failed, and why."""
        failed: list[tuple[Pair, OrbitMQError]] = []

        def note(number: int, outcome: Answer | OrbitMQError) -> None:
            if isinstance(outcome, OrbitMQError):
                failed.append((pairs[number], outcome))
            elif outcome.code != ResponseCode.SUCCESS:
                error = from_response(RequestCode.END_TRANSACTION, outcome.code, outcome.remark, addr)
                failed.append((pairs[number], error))

        pipe = Pipe(self._cluster, at_once=at_once, done=note)
        for pair in pairs:
            await pipe.put(addr, self._command(pair, how))
        await pipe.finish()
        return failed

    def _command(self, pair: Pair, how: int) -> Command:
        log_offset, half_offset = pair
        fields = {
            "producerGroup": self._group,
            "tranStateTableOffset": str(half_offset),
            "commitLogOffset": str(log_offset),
            "commitOrRollback": str(how),
            "fromTransactionCheck": "false",
            "msgId": f"{log_offset:016X}",
        }
        return request(RequestCode.END_TRANSACTION, fields)

    async def _is_delivered(self, broker: str, pair: Pair) -> bool:
        """Looks for the real message of a half message, by the id that both carry; of a batch it is the last one's."""
        half = await self._half(await self._cluster.broker_addr(broker), pair[0])
        topic = half.properties.get(Prop.REAL_TOPIC)
        # A delayed message waits for its time in a topic of the broker.
        for place in (
            (topic, TIMER_TOPIC, SCHEDULE_TOPIC) if _DELAYS.intersection(half.properties) else (topic,)
        ):
            if place:
                with suppress(NotFound):
                    await messages_by_id(self._cluster, place, half.msg_id)
                    return True
        return False

    async def _half(self, addr: str, log_offset: int) -> Message:
        command = request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(log_offset)})
        answer = await self._cluster.request(addr, command)
        return decode_records(answer.body)[0]


def ends_at_once(pairs: Sequence[Pair]) -> int:
    """How many of these may be under way. How large they are nobody has noted, but each ends before the next begins."""
    total_bytes = 0
    for (log_offset, _), (next_offset, _) in pairwise(pairs):
        gap_bytes = next_offset - log_offset
        total_bytes += gap_bytes if 0 < gap_bytes < BATCH_BYTES else BATCH_BYTES
    mean_bytes = total_bytes // max(1, len(pairs) - 1)
    return min(ENDS_AT_ONCE, BYTES_AT_ONCE // max(1, mean_bytes))


def _is_over(error: OrbitMQError) -> bool:
    return error.code == ResponseCode.SYSTEM_ERROR


async def open_halves(cluster: Cluster, addr: str, group: str) -> list[Pair]:
    """The half messages of a group that nobody has ended yet; none where the broker cannot list them."""
    if not await is_native(cluster, addr):
        return []
    from orbitmq.client.admin.half import half_messages
    from orbitmq.wire.message_id import parse_offset_msg_id

    listed = await half_messages(cluster, group=group, max_num=100_000, broker=addr)
    return [(parse_offset_msg_id(half.offset_msg_id)[2], half.half_offset) for half in listed.messages]
