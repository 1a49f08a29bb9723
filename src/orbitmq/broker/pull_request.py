"""One pull request, as long as it is not answered."""

from __future__ import annotations

from msgspec import Struct

from orbitmq.net.connection import Connection
from orbitmq.store.selection import EVERYTHING, Selection
from orbitmq.wire.header_json import PullFields


class Pull(Struct, eq=False):
    """A struct, since each waiting pull is one, and without a call into Python."""

    conn: Connection
    opaque: int
    codec: int
    fields: PullFields
    started_ms: int
    offset: int
    """From where it reads: where it was asked to, or further on when what came was not for it."""
    deadline_ms: int = 0
    overdue: bool = False
    filter: Selection = EVERYTHING
