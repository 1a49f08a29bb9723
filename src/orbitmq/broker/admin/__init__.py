"""Administration: what tools, dashboards and slaves ask a broker.

In: decoded requests of tools, with the broker and the connection they came on. Out: one reply each, and for
some an order or a question to the clients concerned. `HANDLERS` maps every request code served here to its
handler; codes that are in no table are answered by the gateway.
Invariants: an answer decodes with the Java classes of 4.9 (names and key forms as there, extra keys only
where a peer ignores them); what is refused changes nothing and says why; a slave's tables are never changed.
May import the broker's tables, `orbitmq.net`, `orbitmq.store`, `orbitmq.wire` and `orbitmq.config`.
"""

from __future__ import annotations

from typing import Final

from orbitmq.broker.admin import (
    broker_status,
    groups,
    messages,
    progress,
    relay,
    reset,
    settings,
    stopping,
    topics,
)
from orbitmq.broker.admin.context import Broker, Handler, Store

__all__ = ["HANDLERS", "Broker", "Handler", "Store"]

HANDLERS: Final[dict[int, Handler]] = {
    **topics.HANDLERS,
    **groups.HANDLERS,
    **progress.HANDLERS,
    **reset.HANDLERS,
    **relay.HANDLERS,
    **messages.HANDLERS,
    **settings.HANDLERS,
    **broker_status.HANDLERS,
    **stopping.HANDLERS,
}
