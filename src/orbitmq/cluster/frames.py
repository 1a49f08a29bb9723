"""The heads of what goes over a replication link, in both protocols."""

from __future__ import annotations

from struct import Struct
from typing import Final

BLOCK_HEAD: Final = Struct(">qi")
"""Plain: log offset, size. A size of 0 is a heartbeat. It is what Java brokers send each other."""
GROUP_HEAD: Final = Struct(">qiq")
"""In a group: log offset (or TABLE), size, up to where the log may be shown."""
TABLE: Final = -1
"""In the place of the log offset: what follows is a table, {"seq": n, "table": name, "data": {...}}."""
REPORT: Final = Struct(">q")
"""From the slave: the log offset up to which it answers for; in a group, -seq of a table it has saved."""
LARGEST_BLOCK_BYTES: Final = 64 << 20
