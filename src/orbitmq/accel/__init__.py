"""The optional accelerator: C versions of the few loops that decide the broker's speed.

Its functions are None when the extension was not built (no compiler at install time) or is switched off
with ORBITMQ_PURE=1; everything then runs on its plain Python twin. Imports nothing of ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

stage_frames: Callable[..., Any] | None = None
put_index: Callable[..., int] | None = None
gather: Callable[..., tuple[bytes, int]] | None = None
read_pull: (
    Callable[[bytes, int, int], tuple[bytes, int, int, int, int, int, int, int, int, int] | None] | None
) = None
found_page: Callable[..., tuple[bytes, int, int]] | None = None
found_parts: Callable[..., tuple[bytes, int, int]] | None = None
pick: Callable[..., tuple[bytes, int, int, int, bytes | None]] | None = None
follow: Callable[..., tuple[int, int, list[tuple[Any, bytes]], bytes, bytes] | None] | None = None
whole_records: Callable[..., tuple[int, bool]] | None = None
unit_bodies: Callable[..., tuple[int, int]] | None = None
unit_properties: Callable[..., tuple[int, int]] | None = None
unit_places: Callable[..., int] | None = None
page_bodies: Callable[..., tuple[int, int, int]] | None = None

if not os.environ.get("ORBITMQ_PURE"):
    try:
        from orbitmq.accel import _accel
    except ImportError:
        pass
    else:
        stage_frames = _accel.stage_frames
        put_index = _accel.put_index
        gather = _accel.gather
        read_pull = _accel.read_pull
        found_page = _accel.found_page
        found_parts = _accel.found_parts
        pick = _accel.pick
        follow = _accel.follow
        whole_records = _accel.whole_records
        unit_bodies = _accel.unit_bodies
        unit_properties = _accel.unit_properties
        unit_places = _accel.unit_places
        page_bodies = _accel.page_bodies
