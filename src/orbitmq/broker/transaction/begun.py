"""Commits that a crash interrupted: their messages, or some of them, are in the log, the word that they ended is not.

Each is completed before anybody else may write: later messages in its queue would hide it from the next start, which
looks at the last ones only.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from orbitmq.broker import redraft
from orbitmq.broker.transaction import half_batch, records
from orbitmq.broker.transaction.ledger import Half, Ledger, Outcome
from orbitmq.broker.transaction.loading import Delivered
from orbitmq.net.errors import RequestError
from orbitmq.store.cleaner import DISK_FULL
from orbitmq.wire import topics as names
from orbitmq.wire.codes import ResponseCode

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.wire.message import Message

log = logging.getLogger("orbitmq.transaction")

TRIED_FOR_MS: Final = 3_600_000
"""One that cannot be completed must not keep old log files, nor the progress of all others, for ever."""


class Unreadable(Exception):
    """The half message is gone or damaged, so nobody knows what is missing."""


class BegunCommits:
    def __init__(self, broker: Broker, ledger: Ledger, found: Sequence[Delivered] = ()) -> None:
        self._broker = broker
        self._ledger = ledger
        self._waiting = list(found)
        self._given_up: set[int] = set()
        self._failing_since_ms: dict[int, int] = {}
        self._said = ""
        self.written_to = 0
        """Where in the log the last word ends that was written here."""
        # Committed is committed: nobody may roll back what has begun to be visible.
        for half, _ in self._waiting:
            ledger.ended(half.queue_offset, Outcome.COMMITTED)

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def needs(self, log_end: int) -> bool:
        """Whether the log before this offset is needed to complete them; their messages lie behind the half ones."""
        return any(half.log_offset < log_end for half, _ in self._waiting)

    def check(self, message: Message) -> None:
        """Raises when this half message's commit was begun and is not complete: no word about it may be given."""
        if not self._waiting and not self._given_up:
            return
        identity = records.half_of(message).identity
        if identity in self._given_up:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                "this commit was interrupted by a crash and could not be completed: the broker's log tells why",
            )
        if any(half.identity == identity for half, _ in self._waiting):
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "this commit was interrupted by a crash and is not complete yet: ask again",
            )

    def complete(self) -> None:
        """Of a batch the crash may have left the first messages only; the rest belongs to the same commit.

        A new master may not write yet when it starts: then it is done later. A disk so full that clients are refused is
        no hindrance: what is written here lets more go than it takes.
        """
        store = self._broker.store
        if not self._waiting or not may_write(store.refusal):
            return
        left: list[Delivered] = []
        done = 0
        for number, begun in enumerate(self._waiting):
            try:
                self._complete(begun)
                done += 1
            except OSError as error:
                self._say(f"commits that a crash interrupted are not completed yet: {error}")
                left += self._waiting[number:]
                break
            except Exception as error:
                if self._is_kept(begun.half, error):
                    left.append(begun)
        self._waiting = left
        if done:
            log.warning("%d transactions had been committed just before a crash; it is written down", done)

    def _complete(self, begun: Delivered) -> None:
        half, stored = begun
        store = self._broker.store
        message = redraft.message_at(store, half.log_offset)
        if message is None or message.topic != names.HALF_TOPIC:
            raise Unreadable(
                "its half message cannot be read; run `orbitmq store verify` on the stopped store"
            )
        op = records.op(half.queue_offset, self._broker.clock(), store.settings.store_host)
        places, self.written_to = redraft.put_all(store, [*half_batch.rest(message, stored), op])
        self._ledger.ended(half.queue_offset, Outcome.COMMITTED, places[-1].queue_offset)

    def _is_kept(self, half: Half, error: Exception) -> bool:
        """After an error that is not the disk's: whether it will be tried again."""
        now_ms = self._broker.clock()
        since_ms = self._failing_since_ms.setdefault(half.queue_offset, now_ms)
        name = f"half message {half.queue_offset} of producer group {half.group}, at log offset {half.log_offset}"
        if now_ms - since_ms <= TRIED_FOR_MS:
            self._say(f"the commit of {name} was interrupted by a crash and cannot be completed: {error}")
            return True
        self._given_up.add(half.identity)
        log.error(
            "the commit of %s stays as the crash left it: some of its messages may be missing (%s)",
            name,
            error,
        )
        return False

    def _say(self, what: str) -> None:
        """It is tried twice a second, and said once."""
        if what != self._said:
            self._said = what
            log.error("%s", what)


def may_write(refusal: str) -> bool:
    """Whether the broker's own words about transactions may go to a store that refuses clients for this reason."""
    return not refusal or refusal.startswith(DISK_FULL)
