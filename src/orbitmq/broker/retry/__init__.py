"""Messages that consumers could not handle: another try later, or the dead-letter topic.

In:  CONSUMER_SEND_MSG_BACK, and plain sends to `%RETRY%group`.
Out: a copy in `%RETRY%group` after a delay that grows with every try, or in `%DLQ%group` when the tries are
     used up or the consumer asks for it. Why it failed is kept as a property if the consumer says so.

* `policy.py` is pure: how often, and how long to wait.
* `room.py` reads the original, makes the copy and stores it.

Invariants: the answer follows the copy's durability, so a message is never only in a consumer's memory; the
copy keeps body, keys, tags, properties and the id of the first delivery.

May import the broker's tables, `net`, `store` and `wire`.
"""

from __future__ import annotations

from orbitmq.broker.retry.room import Retries

__all__ = ["Retries"]
