"""Where in the log the messages begin that groups have still to read: `deleteUnconsumed=false` keeps them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbitmq.broker.offsets import split_key
from orbitmq.store.cleaner import Hold

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker


def first_unconsumed(broker: Broker) -> Hold | None:
    """The oldest message that some group with offsets here has not read; None when expired is expired.

    A group counts from its first committed offset until it is deleted. One that broadcasts keeps its offsets
    elsewhere and cannot be waited for.
    """
    if broker.config.delete_unconsumed:
        return None
    first: Hold | None = None
    for key, offsets in broker.offsets.table.items():
        topic, group = split_key(key)
        for queue_id, queue in broker.store.queues_of(topic).items():
            offset = max(offsets.get(queue_id, 0), queue.min_offset)
            unit = queue.unit(offset) if offset < queue.max_offset else None
            if unit is not None and (first is None or unit[0] < first.log_offset):
                first = Hold(
                    unit[0],
                    f"group {group} has not read topic {topic} queue {queue_id} from offset {offset} on "
                    "(deleteUnconsumed=false)",
                )
    return first
