from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from ipaddress import IPv4Address, IPv6Address
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.wire.errors import WireError
from orbitmq.wire.message_id import (
    ID_V4_CHARS,
    RUN_IDS,
    UniqIdFactory,
    offset_msg_id,
    pack_host,
    parse_offset_msg_id,
    uniq_id_time_ms,
    unpack_host,
)

ports = st.integers(0, 65535)
offsets = st.integers(0, (1 << 63) - 1)
addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6))


def epoch_ms(*parts: int, zone: timezone | ZoneInfo = UTC) -> int:
    year, month, day, hour = parts
    return int(datetime(year, month, day, hour, tzinfo=zone).timestamp() * 1000)


def test_the_reference_offset_id() -> None:
    host = pack_host("10.0.0.2:10911")
    assert offset_msg_id(host, 1024) == "0A00000200002A9F0000000000000400"
    assert parse_offset_msg_id("0A00000200002A9F0000000000000400") == ("10.0.0.2", 10911, 1024)
    assert parse_offset_msg_id("0a00000200002a9f0000000000000400") == ("10.0.0.2", 10911, 1024)


@given(addresses, ports, offsets)
def test_offset_ids_round_trip(address: IPv4Address | IPv6Address, port: int, offset: int) -> None:
    host = pack_host(f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}")
    msg_id = offset_msg_id(host, offset)
    assert len(msg_id) == (32 if address.version == 4 else 56)
    assert parse_offset_msg_id(msg_id) == (str(address), port, offset)


@given(addresses, ports)
def test_hosts_round_trip(address: IPv4Address | IPv6Address, port: int) -> None:
    packed = pack_host(f"{address}:{port}")
    assert packed == address.packed + port.to_bytes(4, "big")
    assert pack_host(unpack_host(packed)) == packed


@pytest.mark.parametrize(
    "text", ["", ":", "10.0.0.1", "10.0.0.1:", "10.0.0.1:65536", "10.0.0.1:-1", "host:1"]
)
def test_bad_hosts_are_refused(text: str) -> None:
    with pytest.raises(WireError, match="is not a host address"):
        pack_host(text)


@pytest.mark.parametrize("size", [0, 7, 9, 21])
def test_hosts_of_odd_sizes_are_refused(size: int) -> None:
    with pytest.raises(WireError):
        unpack_host(bytes(size))
    with pytest.raises(WireError):
        offset_msg_id(bytes(size), 0)


@given(st.one_of(st.text(max_size=60), st.text("0123456789abcdefABCDEF ", min_size=32, max_size=32)))
def test_other_texts_are_refused_cleanly(text: str) -> None:
    try:
        ip, port, offset = parse_offset_msg_id(text)
    except WireError:
        return
    assert offset_msg_id(pack_host(f"{ip}:{port}"), offset) == text.upper()


def test_a_unique_id_is_not_taken_for_an_offset_id() -> None:
    with pytest.raises(WireError, match="query it by key"):
        parse_offset_msg_id("C00002027BD65FFD2B274C6A1FDB0192")


def test_unique_ids_hold_host_process_time_and_counter() -> None:
    now_ms = epoch_ms(2026, 11, 15, 20)
    factory = UniqIdFactory("192.0.2.2", 0x17BD6, lambda: now_ms, process_hash=0x5FFD2B27, zone=UTC)
    first, second = factory.next_id(), factory.next_id()
    assert first == f"C00002027BD65FFD2B27{now_ms - epoch_ms(2026, 11, 1, 0):08X}0000"
    assert second == first[:-4] + "0001"


def test_unique_ids_wrap_their_counter() -> None:
    factory = UniqIdFactory("192.0.2.2", 1, lambda: epoch_ms(2026, 11, 15, 20), zone=UTC)
    ids = [factory.next_id() for _ in range(RUN_IDS + 1)]
    assert len(set(ids)) == RUN_IDS
    assert ids[-1] == ids[0]
    assert ids[-2].endswith("7FFF")


def test_unique_ids_follow_the_month_both_ways() -> None:
    now = [epoch_ms(2026, 1, 31, 23)]
    factory = UniqIdFactory("192.0.2.2", 1, lambda: now[0], zone=UTC)
    assert factory.next_id()[20:28] == f"{(30 * 24 + 23) * 3600_000:08X}"
    now[0] = epoch_ms(2026, 2, 1, 0)
    assert factory.next_id()[20:28] == "00000000"
    # A clock set back over the turn of the month must not give a negative span.
    now[0] = epoch_ms(2026, 1, 31, 23)
    assert factory.next_id()[20:28] == f"{(30 * 24 + 23) * 3600_000:08X}"


def test_unique_ids_count_from_the_local_month_start() -> None:
    zone = ZoneInfo("Asia/Shanghai")
    factory = UniqIdFactory("192.0.2.2", 1, lambda: epoch_ms(2026, 3, 1, 1, zone=zone), zone=zone)
    assert factory.next_id()[20:28] == f"{3600_000:08X}"


def test_unique_ids_on_ipv6_hosts_and_without_address() -> None:
    now_ms = epoch_ms(2026, 11, 15, 20)
    assert len(UniqIdFactory("2001:db8::1", 1, lambda: now_ms).next_id()) == 56
    assert UniqIdFactory(None, 1, lambda: now_ms).next_id()[:8] == f"{now_ms & 0xFFFFFFFF:08X}"


@given(
    st.datetimes(datetime(2001, 1, 2), datetime(2037, 1, 1)),
    st.integers(1, 27 * 86400_000),
    st.sampled_from(["192.0.2.2", "2001:db8::1"]),
    st.sampled_from([UTC, timezone(timedelta(hours=8)), timezone(timedelta(hours=-11, minutes=-30))]),
)
def test_the_time_of_a_recent_id_is_found_again(
    moment: datetime, age_ms: int, ip: str, zone: timezone
) -> None:
    made_ms = int(moment.replace(tzinfo=UTC).timestamp() * 1000)
    msg_id = UniqIdFactory(ip, 1, lambda: made_ms, zone=zone).next_id()
    assert uniq_id_time_ms(msg_id, made_ms + age_ms, zone) == made_ms


@pytest.mark.parametrize("text", ["", "xyz", "G" * 32, "0" * 31, "00 " * 10 + "00"])
def test_the_time_of_no_id_is_refused(text: str) -> None:
    with pytest.raises(WireError, match="not a message id"):
        uniq_id_time_ms(text, 0, UTC)


@given(st.lists(st.one_of(st.none(), st.integers(1, RUN_IDS)), max_size=30), st.integers(0, 2))
def test_runs_of_ids_meet_neither_each_other_nor_single_ids(
    steps: list[int | None], ms_per_step: int
) -> None:
    now = [1_700_000_000_000]
    factory = UniqIdFactory("10.0.0.1", 7, lambda: now[0])
    seen: set[str] = set()
    made = 0
    for step in steps:
        now[0] += ms_per_step
        if step is None:
            seen.add(factory.next_id())
            made += 1
            continue
        stamp, first = factory.reserve(step)
        assert first + step <= 0x10000
        # The ends stand for the run: what lies between them has the same text.
        ids = {f"{stamp}{number:04X}" for number in (*range(first, first + step, 997), first + step - 1)}
        assert not ids & seen and all(len(one) == ID_V4_CHARS for one in ids)
        seen |= ids
    assert len([one for one in seen if int(one[-4:], 16) < RUN_IDS]) == made


def test_a_run_has_a_limit() -> None:
    factory = UniqIdFactory("10.0.0.1", 7, lambda: 1_700_000_000_000)
    for count in (0, RUN_IDS + 1):
        with pytest.raises(ValueError, match="ids at once"):
            factory.reserve(count)
