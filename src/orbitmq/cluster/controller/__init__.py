"""The controller: who is master of each broker group, and who may become it.

`machine` decides without any I/O, `presence` and `election` are its two halves; `state` is what must outlive the
process and `engines` where that is kept; `leadership` makes sure that one controller at a time speaks, and `service`
puts it all on a port.
"""

from __future__ import annotations
