from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq.store.disk import Disk
from orbitmq.store.log_scan import ScannedRecord, Stop, read_record, resync, scan_segment
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.java_hash import string_hash
from orbitmq.wire.message import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, decode_record, encode_blank, encode_record
from orbitmq.wire.properties import Prop, decode_properties, encode_properties, split_keys

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
BASE = 4096


def records(count: int, base: int = BASE, body: bytes = b"body") -> list[bytes]:
    made: list[bytes] = []
    at = base
    for n in range(count):
        record = encode_record(
            topic=f"Topic{n % 3}",
            body=body * (n + 1),
            properties=b"KEYS\x01k%d\x02TAGS\x01t" % n,
            queue_id=n % 4,
            queue_offset=n,
            physical_offset=at,
            store_ms=1_700_000_000_000 + n,
            born_host="[2001:db8::1]:9" if n % 5 == 3 else "10.0.0.1:9",
            store_host="[2001:db8::2]:9" if n % 7 == 4 else "10.0.0.2:9",
            magic=MESSAGE_MAGIC_V2 if n % 6 == 5 else MESSAGE_MAGIC,
        )
        made.append(record)
        at += len(record)
    return made


def scan(buf: bytes, base: int = BASE, start: int = 0) -> tuple[list[ScannedRecord], Stop, int, str]:
    scan = scan_segment(buf, base, start)
    found = list(scan)
    return found, scan.stop, scan.pos, scan.problem


def test_the_golden_log_is_read_as_its_manifest_says() -> None:
    manifest = json.loads((GOLDEN / "manifest.json").read_text())
    expected = {message["commitLogOffset"]: message for message in manifest["messages"]}
    disk = Disk()
    stops = []
    for name in disk.listdir(GOLDEN / "store" / "commitlog"):
        fd = disk.open_ro(GOLDEN / "store" / "commitlog" / name)
        buf = disk.map_ro(fd, manifest["config"]["mappedFileSizeCommitLog"])
        segment = scan_segment(buf, int(name))
        for record in segment:
            message = expected.pop(record.offset)
            properties = message["properties"]
            assert (record.topic, record.queue_id, record.queue_offset) == (
                message["topic"],
                message["queueId"],
                message["queueOffset"],
            )
            assert (record.size, record.sys_flag, record.store_ms) == (
                message["storeSize"],
                message["sysFlag"],
                message["storeTimestamp"],
            )
            assert record.tags_code == string_hash(properties.get("TAGS", ""))
            unique = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
            assert [key.decode() for key in record.keys] == unique + properties.get("KEYS", "").split()
            assert (record.delay_level or b"").decode() == properties.get("DELAY", "")
        stops.append((int(name) + segment.pos, segment.stop))
        buf.close()
        disk.close(fd)
    assert not expected
    blanks = [(blank["offset"], Stop.BLANK) for blank in manifest["blanks"]]
    assert stops == [*blanks, (manifest["commitLogEnd"], Stop.ZEROS)]


def test_records_of_every_layout_are_read_like_the_reference_decoder_does() -> None:
    made = records(40)
    found, stop, pos, _ = scan(b"".join(made))
    assert (stop, pos) == (Stop.END, sum(map(len, made)))
    for raw, record in zip(made, found, strict=True):
        message = decode_record(raw)
        assert record[1:] == (
            message.size,
            message.topic,
            message.queue_id,
            message.queue_offset,
            message.sys_flag,
            message.store_ms,
            message.properties_raw,
        )
        assert record.offset == message.physical_offset


def test_a_blank_marker_zeros_and_the_end_are_told_apart() -> None:
    made = b"".join(records(3))
    assert scan(made + encode_blank(50) + bytes(42))[1:3] == (Stop.BLANK, len(made))
    assert scan(made + bytes(500))[1:3] == (Stop.ZEROS, len(made))
    assert scan(made + bytes(5))[1:3] == (Stop.END, len(made))
    _, stop, pos, problem = scan(made + encode_blank(50) + bytes(100))
    assert (stop, pos) == (Stop.BAD, len(made))
    assert "blank marker gives its size as 50" in problem
    assert scan(b"")[1:3] == (Stop.END, 0)


def test_a_record_of_another_place_is_bad() -> None:
    made = records(2)
    _, stop, pos, problem = scan(made[0] + records(1, base=9)[0] + bytes(100))
    assert (stop, pos) == (Stop.BAD, len(made[0]))
    assert "another place" in problem


def test_half_and_rolled_back_records_have_no_unit() -> None:
    for bits, queued, indexed in ((0, True, True), (4, False, True), (8, True, True), (12, False, False)):
        raw = encode_record(topic="T", body=b"b", sys_flag=bits, properties=b"UNIQ_KEY\x01u")
        (record,) = scan(raw, base=0)[0]
        assert (record.is_queued, record.is_indexed) == (queued, indexed)
        assert record.index_rows == ([(b"T#", b"u", 0, 0)] if indexed else [])
    assert SysFlag.TX_ROLLBACK == 12


names = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "XKEYS", "a"])
values = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=8)


@given(st.lists(st.tuples(names, values), max_size=8), st.booleans())
def test_tags_and_keys_agree_with_the_decoded_properties(
    pairs: list[tuple[str, str]], trailing: bool
) -> None:
    raw = "\x02".join(f"{name}\x01{value}" for name, value in pairs).encode() + b"\x02" * trailing
    decoded = decode_properties(raw)
    record = ScannedRecord(0, 0, "T", 0, 0, 0, 0, raw)
    assert record.tags_code == string_hash(decoded.get(Prop.TAGS, ""))
    unique = decoded.get(Prop.UNIQ_KEY)
    expected = ([unique] if unique else []) + split_keys(decoded.get(Prop.KEYS))
    assert [key.decode() for key in record.keys] == expected
    assert encode_properties(decoded) is not None


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damage_costs_the_records_it_hits_and_none_behind(data: st.DataObject) -> None:
    made = records(12)
    starts = [sum(map(len, made[:n])) for n in range(len(made) + 1)]
    whole = b"".join(made)
    buf = bytearray(whole + encode_blank(64) + bytes(56))
    first = data.draw(st.integers(0, len(whole) - 1))
    length = min(data.draw(st.integers(1, 200)), len(whole) - first)
    buf[first : first + length] = data.draw(st.binary(min_size=length, max_size=length))
    damaged = {n for n in range(12) if bytes(buf[starts[n] : starts[n + 1]]) != made[n]}

    found: list[int] = []
    pos: int | None = 0
    while pos is not None:
        segment = scan_segment(bytes(buf), BASE, pos)
        found += [record.offset - BASE for record in segment]
        if segment.stop is Stop.BLANK:
            break
        assert segment.stop is not Stop.END
        pos = resync(bytes(buf), BASE, segment.pos)
    assert pos is not None
    assert found == sorted(found)
    # Noise may leave a record sound in ways no check can see (a changed host), but never cost a whole one.
    assert {starts[n] for n in range(12) if n not in damaged} <= set(found)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 400))
def test_any_bytes_are_read_without_an_exception(noise: bytes, start: int) -> None:
    made = records(1)[0]
    for buf in (noise, made[: len(noise)] + noise, made + noise):
        list(scan_segment(buf, BASE, min(start, len(buf))))
        resync(buf, BASE, 0)
        read_record(buf, BASE, start)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_changed_length_is_survived(data: st.DataObject) -> None:
    for made in records(6):
        at = data.draw(st.integers(0, len(made) - 1))
        buf = made[:at] + bytes([data.draw(st.integers(0, 255))]) + made[at + 1 :]
        list(scan_segment(buf, BASE))
        list(scan_segment(buf, BASE, 0, data.draw(st.integers(0, len(buf)))))


def test_a_log_copied_into_a_body_is_not_taken_for_records() -> None:
    inner = b"".join(records(3))
    outer = encode_record(topic="T", body=inner, physical_offset=BASE)
    after = records(1, base=BASE + len(outer))[0]
    buf = bytearray(outer + after)
    buf[2] ^= 1
    assert scan(bytes(buf))[1] is Stop.BAD
    assert resync(bytes(buf), BASE, 0) == len(outer)
    assert resync(bytes(buf), BASE, len(outer)) is None


def test_read_record_gives_one_or_none() -> None:
    made = records(3)
    buf = b"".join(made)
    second = read_record(buf, BASE, len(made[0]))
    assert second is not None
    assert second.queue_offset == 1
    assert read_record(buf, BASE, len(made[0]) + 1) is None
    assert read_record(buf, BASE, -4) is None
    assert read_record(buf, BASE, len(buf) + 5) is None
