"""Transactional messages: kept aside until their producer says commit, asked for when it says nothing.

In:  sends marked as prepared, END_TRANSACTION of producers, the clock.
Out: half messages (RMQ_SYS_TRANS_HALF_TOPIC), real messages, op messages that say which half messages have
     ended (RMQ_SYS_TRANS_OP_HALF_TOPIC), CHECK_TRANSACTION_STATE to a live producer of the group.

* `ledger.py` is pure: which half messages are open, and what the next round of questions does with each.
* `records.py` makes the stored forms, `half_batch.py` those of many messages in one half message; `loading.py` fills
  the ledger from the queues after a start, and `begun.py` completes what a crash left of a commit.
* `room.py` ties them to store, clients and clock, `ending.py` answers END_TRANSACTION; `lane.py` is the quick way
  of both for the common case. `listing.py` answers `orbitmq message half`.

Invariants:

* The real messages of a half (one, or all of its batch, in their order) and the op that ends it are written together,
  the op last: after a crash there is never an ended half whose commit was lost. Real messages without their op are
  found at the next start by the place of the half message that they carry, where it was when they were written. The
  rest of a batch and the op are written then, before anybody else may write.
* A transaction ends once. Later commits and rollbacks, under whichever of its offsets, change nothing.
* Nobody is counted as asked who was not: without a live producer a half message waits.

May import the broker's tables, `net`, `store` and `wire`.
"""

from __future__ import annotations

from orbitmq.broker.transaction.room import Transactions

__all__ = ["Transactions"]
