"""Message identifiers: where a message lies (offset id) and what its producer called it (unique id).

Both are upper-case hex and have the same lengths (32 characters, 56 with IPv6), so a text alone does not tell
which of the two it is. The host form shared by ids and records, ip + 4-byte port, lives here too.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from itertools import count
from struct import Struct

from orbitmq.wire.errors import WireError

HOST_V4_BYTES = 8
HOST_V6_BYTES = 20
ID_V4_CHARS = 32
ID_V6_CHARS = 56
RUN_IDS = 0x8000

_PORT = Struct(">I")
_OFFSET = Struct(">q")
_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF


@lru_cache(4096)
def pack_host(text: str) -> bytes:
    """ "10.0.0.1:10911" or "[::1]:10911" as 8 or 20 bytes."""
    address, _, port = text.rpartition(":")
    try:
        packed = ip_address(address.removeprefix("[").removesuffix("]")).packed
        number = int(port)
    except ValueError:
        number = -1
    if not 0 <= number <= 65535:
        raise WireError(f"{text!r} is not a host address; write it as 10.0.0.1:10911 or [::1]:10911")
    return packed + _PORT.pack(number)


@lru_cache(4096)
def unpack_host(host: bytes) -> str:
    if len(host) == HOST_V4_BYTES:
        return f"{host[0]}.{host[1]}.{host[2]}.{host[3]}:{_PORT.unpack_from(host, 4)[0]}"
    if len(host) == HOST_V6_BYTES:
        return f"[{IPv6Address(host[:16])}]:{_PORT.unpack_from(host, 16)[0]}"
    raise WireError(f"a host takes {HOST_V4_BYTES} or {HOST_V6_BYTES} bytes, not {len(host)}")


@lru_cache(4096)
def _hex_host(host: bytes) -> str:
    if len(host) not in (HOST_V4_BYTES, HOST_V6_BYTES):
        raise WireError(f"a host takes {HOST_V4_BYTES} or {HOST_V6_BYTES} bytes, not {len(host)}")
    return host.hex().upper()


def offset_msg_id(store_host: bytes, offset: int) -> str:
    """The id of the record at this commit-log offset of the broker with this address."""
    return f"{_hex_host(store_host)}{offset & _MASK64:016X}"


def parse_offset_msg_id(msg_id: str) -> tuple[str, int, int]:
    """(ip, port, commit-log offset) named by an offset id."""
    data = _unhex(msg_id)
    ip_bytes = len(data) - 12
    port = _PORT.unpack_from(data, ip_bytes)[0]
    offset: int = _OFFSET.unpack_from(data, ip_bytes + 4)[0]
    if port > 65535 or offset < 0:
        # Unique ids have the same form; their bytes read as a port are nearly always out of range.
        raise WireError(
            f"{msg_id!r} names port {port} and offset {offset}, so it is not an offset id; "
            "if it came from a producer it is a unique id: query it by key together with its topic"
        )
    return str(ip_address(data[:ip_bytes])), port, offset


def _unhex(msg_id: str) -> bytes:
    if len(msg_id) in (ID_V4_CHARS, ID_V6_CHARS):
        try:
            data = bytes.fromhex(msg_id)
        except ValueError:
            data = b""
        # fromhex skips blanks, which no id contains.
        if len(data) * 2 == len(msg_id):
            return data
    raise WireError(f"{msg_id[:80]!r} is not a message id; ids are 32 or 56 hexadecimal digits")


def month_start(now_ms: int, zone: tzinfo | None = None) -> datetime:
    """Midnight of the first day of the month, in local time unless a zone is given."""
    moment = datetime.fromtimestamp(now_ms / 1000, zone)
    return moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)


def _epoch_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


class UniqIdFactory:
    """Makes the ids producers put into UNIQ_KEY.

    ip + low 16 bits of the pid + a constant of the process + ms since the start of the month + a counter. One
    process keeps one factory: two would count separately and could make equal ids in one millisecond.
    """

    def __init__(
        self,
        ip: str | None,
        pid: int,
        clock: Callable[[], int],
        *,
        process_hash: int = 0,
        zone: tzinfo | None = None,
    ) -> None:
        self._clock = clock
        self._zone = zone
        self._counter = count()
        address = ip_address(ip).packed if ip else (clock() & _MASK32).to_bytes(4, "big")
        self._prefix = f"{address.hex().upper()}{pid & 0xFFFF:04X}{process_hash & _MASK32:08X}"
        self._month_ms = 0
        self._next_month_ms = 0
        self._run_ms = 0
        self._run_next = RUN_IDS

    def next_id(self) -> str:
        now_ms = self._clock()
        if not self._month_ms <= now_ms < self._next_month_ms:
            self._turn_month(now_ms)
        return f"{self._prefix}{now_ms - self._month_ms & _MASK32:08X}{next(self._counter) % RUN_IDS:04X}"

    def reserve(self, count_of_ids: int) -> tuple[str, int]:
        """Many ids at once: (text, number) so that the i-th id is the text and `number + i` as four digits.

        At most 0x8000 of them. They take the upper half of the counter and `next_id` the lower one, and the
        millisecond is moved on when its half is used up: no two are ever equal.
        """
        if not 0 < count_of_ids <= RUN_IDS:
            raise ValueError(f"{count_of_ids} ids at once; 1 to {RUN_IDS} are possible")
        now_ms = max(self._clock(), self._run_ms)
        first = self._run_next if now_ms == self._run_ms else RUN_IDS
        if first + count_of_ids > 2 * RUN_IDS:
            now_ms, first = now_ms + 1, RUN_IDS
        self._run_ms, self._run_next = now_ms, first + count_of_ids
        if not self._month_ms <= now_ms < self._next_month_ms:
            self._turn_month(now_ms)
        return f"{self._prefix}{now_ms - self._month_ms & _MASK32:08X}", first

    def _turn_month(self, now_ms: int) -> None:
        first = month_start(now_ms, self._zone)
        self._month_ms = _epoch_ms(first)
        self._next_month_ms = _epoch_ms((first + timedelta(days=32)).replace(day=1))


def uniq_id_time_ms(msg_id: str, now_ms: int, zone: tzinfo | None = None) -> int:
    """About when a unique id was made, taking it to be less than a month old: enough to search near it."""
    data = _unhex(msg_id)
    span_ms = int.from_bytes(data[-6:-2], "big")
    first = month_start(now_ms, zone)
    made_ms = _epoch_ms(first) + span_ms
    if made_ms >= now_ms:
        made_ms = _epoch_ms((first - timedelta(days=1)).replace(day=1)) + span_ms
    return made_ms
