from typing import Any

def stage_frames(
    data: bytes,
    pos: int,
    end: int,
    topics: dict[bytes, tuple[Any, ...]],
    settings: tuple[Any, ...],
    position: int,
    room_end: int,
    store_ms: int,
    born_host: bytes,
    /,
) -> tuple[Any, ...] | None: ...
def put_index(
    map: Any,
    entries_at: int,
    slots: int,
    count: int,
    begin_ms: int,
    hashes: Any,
    offsets: Any,
    times: Any,
    /,
) -> int: ...
def gather(
    units: bytes,
    map: Any,
    base: int,
    log_end: int,
    max_count: int,
    max_bytes: int,
    own: tuple[bytes, int, int, int] | None = None,
    /,
) -> tuple[bytes, int]: ...
def read_pull(
    data: bytes, start: int, stop: int, /
) -> tuple[bytes, int, int, int, int, int, int, int, int, int] | None: ...
def found_page(
    units: bytes,
    map: Any,
    base: int,
    log_end: int,
    max_count: int,
    max_bytes: int,
    own: tuple[bytes, int, int, int] | None,
    texts: tuple[bytes, ...],
    high: int,
    low: int,
    offset: int,
    suggested: int,
    opaque: int,
    fd: int = -1,
    /,
) -> tuple[bytes, int, int]: ...
def found_parts(
    units: bytes,
    map: Any,
    base: int,
    log_end: int,
    max_count: int,
    max_bytes: int,
    own: tuple[bytes, int, int, int] | None,
    texts: tuple[bytes, ...],
    high: int,
    low: int,
    offset: int,
    suggested: int,
    opaque: int,
    fd: int,
    parts: int,
    /,
) -> tuple[bytes, int, int]: ...
def pick(
    units: bytes,
    first: int,
    map: Any,
    base: int,
    log_end: int,
    max_count: int,
    max_bytes: int,
    count: int,
    total: int,
    codes: bytes | None,
    names: tuple[bytes, ...] | None,
    verdicts: dict[bytes, bool],
    own: tuple[bytes, int, int, int] | None = None,
    /,
) -> tuple[bytes, int, int, int, bytes | None]: ...
def follow(
    map: Any, base: int, pos: int, end: int, topics: dict[bytes, tuple[Any, ...]], /
) -> tuple[int, int, list[tuple[Any, bytes]], bytes, bytes] | None: ...
def whole_records(data: Any, offset: int, file_bytes: int, /) -> tuple[int, bool]: ...
def unit_bodies(
    units: Any,
    row: int,
    number: int,
    queue_id: int,
    map: Any,
    base: int,
    limit: int,
    heads: Any,
    bodies: Any,
    ends: Any,
    /,
) -> tuple[int, int]: ...
def unit_properties(
    units: Any,
    row: int,
    number: int,
    queue_id: int,
    map: Any,
    base: int,
    limit: int,
    heads: Any,
    texts: Any,
    ends: Any,
    /,
) -> tuple[int, int]: ...
def unit_places(
    units: Any,
    row: int,
    number: int,
    queue_id: int,
    map: Any,
    base: int,
    limit: int,
    heads: Any,
    places: Any,
    sizes: Any,
    /,
) -> int: ...
def page_bodies(page: Any, number: int, heads: Any, bodies: Any, ends: Any, /) -> tuple[int, int, int]: ...
