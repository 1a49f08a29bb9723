from __future__ import annotations

import hashlib
import json
import mmap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.wire.errors import WireError
from orbitmq.wire.message import (
    BLANK_MAGIC,
    MESSAGE_MAGIC,
    MESSAGE_MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
    RecordCheck,
    RecordKind,
    RecordProblem,
    check_record,
    decode_record,
    decode_records,
    encode_blank,
    encode_record,
)
from orbitmq.wire.message_id import pack_host

GoldenLog = tuple[dict[int, bytes], list[dict[str, int]], int]
GOLDEN = Path(__file__).parents[1] / "data/golden"
VECTOR = bytes.fromhex(
    "0000006C DAA320A7 58932AAC 00000003 00000000 0000000000000005 0000000000000400 00000000"
    "0000018BCFE56800 0A000001000015B3 0000018BCFE56801 0A00000200002A9F 00000000 0000000000000000"
    "00000002 6869 06 546F70696341 0009 544147530154616741"
)
VECTOR_FIELDS: dict[str, Any] = {
    "topic": "TopicA",
    "body": b"hi",
    "properties": b"TAGS\x01TagA",
    "queue_id": 3,
    "queue_offset": 5,
    "physical_offset": 1024,
    "born_ms": 1700000000000,
    "born_host": "10.0.0.1:5555",
    "store_ms": 1700000000001,
    "store_host": "10.0.0.2:10911",
}

ints = st.integers(-(1 << 31), (1 << 31) - 1)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
hosts = st.sampled_from(["10.0.0.1:5555", "255.255.255.255:65535", "[2001:db8::1]:10911", "[::]:0"])
records = st.fixed_dictionaries(
    {
        "topic": st.text(st.characters(exclude_categories=["Cs"]), max_size=31),
        "body": st.binary(max_size=80),
        "properties": st.binary(max_size=60),
        "queue_id": ints,
        "flag": ints,
        "queue_offset": longs,
        "physical_offset": longs,
        "sys_flag": ints,
        "born_ms": longs,
        "born_host": hosts,
        "store_ms": longs,
        "store_host": hosts,
        "reconsume_times": ints,
        "prepared_offset": longs,
        "magic": st.sampled_from([MESSAGE_MAGIC, MESSAGE_MAGIC_V2]),
    }
)


def reread(record: bytes) -> bytes:
    """Encode again what was decoded."""
    message = decode_record(record)
    return encode_record(
        topic=message.topic,
        body=message.body,
        properties=message.properties_raw,
        queue_id=message.queue_id,
        flag=message.flag,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        sys_flag=message.sys_flag,
        born_ms=message.born_ms,
        born_host=message.born_host,
        store_ms=message.store_ms,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        prepared_offset=message.prepared_offset,
        magic=int.from_bytes(record[4:8], "big"),
    )


def test_the_reference_record() -> None:
    assert encode_record(**VECTOR_FIELDS) == VECTOR
    message = decode_record(VECTOR)
    assert (message.topic, message.body, message.queue_id, message.size) == ("TopicA", b"hi", 3, 108)
    assert (message.queue_offset, message.physical_offset) == (5, 1024)
    assert (message.born_host, message.store_host) == ("10.0.0.1:5555", "10.0.0.2:10911")
    assert (message.born_ms, message.store_ms) == (1700000000000, 1700000000001)
    assert message.body_crc == 1486039724
    assert (message.properties, message.tags, message.keys) == ({"TAGS": "TagA"}, "TagA", None)
    assert message.offset_msg_id == message.msg_id == "0A00000200002A9F0000000000000400"
    assert int.from_bytes(VECTOR[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8], "big") == 5
    assert int.from_bytes(VECTOR[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8], "big") == 1024


def test_the_producers_id_and_keys() -> None:
    record = encode_record(topic="T", body=b"x", properties=b"UNIQ_KEY\x01ID\x02KEYS\x01a b")
    message = decode_record(record)
    assert (message.msg_id, message.keys, message.key_list) == ("ID", "a b", ["a", "b"])


@given(records)
def test_round_trip(fields: dict[str, Any]) -> None:
    record = encode_record(**fields)
    v6_hosts = fields["born_host"].startswith("["), fields["store_host"].startswith("[")
    base = 91 + 12 * sum(v6_hosts) + (fields["magic"] == MESSAGE_MAGIC_V2)
    topic_bytes = len(fields["topic"].encode())
    assert len(record) == base + topic_bytes + len(fields["body"]) + len(fields["properties"])
    assert reread(record) == record
    message = decode_record(record)
    flags = 0x10 * v6_hosts[0] | 0x20 * v6_hosts[1]
    assert message.sys_flag == fields["sys_flag"] & ~0x30 | flags
    for name in ("topic", "body", "queue_id", "flag", "queue_offset", "reconsume_times", "prepared_offset"):
        assert getattr(message, name) == fields[name]
    assert check_record(record, 0, len(record)) == RecordCheck(RecordKind.MESSAGE, len(record))


@given(st.lists(records, max_size=4))
def test_many_records_follow_each_other(all_fields: list[dict[str, Any]]) -> None:
    encoded = [encode_record(**fields) for fields in all_fields]
    messages = decode_records(b"".join(encoded))
    assert [message.size for message in messages] == [len(record) for record in encoded]
    assert [message.body for message in messages] == [fields["body"] for fields in all_fields]


def test_a_cut_answer_is_an_error() -> None:
    with pytest.raises(RecordProblem, match="no readable message at byte 108"):
        decode_records(VECTOR + VECTOR[:-1])


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_read(wrap: Any) -> None:
    buffer = wrap(b"\xff" * 7 + VECTOR)
    message = decode_record(buffer, 7)
    assert type(message.body) is type(message.properties_raw) is bytes
    assert (message.topic, message.body) == ("TopicA", b"hi")
    assert check_record(buffer, 7, len(buffer)).kind is RecordKind.MESSAGE


def test_a_mapped_file_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(VECTOR.ljust(4096, b"\0"))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert check_record(mapped, 0, 4096) == (RecordKind.MESSAGE, 108, "")
        assert check_record(mapped, 108, 4096) == (RecordKind.END, 0, "")
        assert decode_record(mapped).body == b"hi"


@given(st.binary(max_size=160), st.integers(-5, 170))
def test_garbage_is_refused_cleanly(data: bytes, pos: int) -> None:
    for buffer in (data, VECTOR[:8] + data):
        check = check_record(buffer, pos, len(buffer) + 50)
        if check.kind is RecordKind.MESSAGE:
            assert decode_record(buffer, pos).size == check.size
        else:
            with pytest.raises(WireError, match="byte"):
                decode_record(buffer, pos)


@given(records, st.data())
def test_damage_never_reads_outside_the_record(fields: dict[str, Any], data: st.DataObject) -> None:
    record = bytearray(encode_record(**fields))
    for _ in range(data.draw(st.integers(1, 4))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    buffer = bytes(record) + VECTOR
    check = check_record(buffer, 0, len(buffer))
    try:
        message = decode_record(buffer)
    except WireError:
        assert check.kind is not RecordKind.MESSAGE
        assert check.kind is not RecordKind.BAD or check.reason
    else:
        assert check == (RecordKind.MESSAGE, message.size, "")
        assert message.size <= len(buffer)


@given(records, st.data())
def test_torn_records_are_never_taken_for_whole(fields: dict[str, Any], data: st.DataObject) -> None:
    record = encode_record(**fields)
    written = data.draw(st.integers(0, len(record) - 1))
    torn = record[:written].ljust(len(record) + 200, b"\0")
    check = check_record(torn, 0, len(torn))
    # Zeros at the end of a record may be its own, so a tear inside them leaves the record whole.
    whole = torn[: len(record)] == record
    assert (check.kind is RecordKind.MESSAGE) == whole or _only_properties_torn(record, written)
    assert check_record(record[:written], 0, written).kind in (RecordKind.BAD, RecordKind.END)


def _only_properties_torn(record: bytes, written: int) -> bool:
    """The checksum covers the body only: a tear in another field with equal lengths stays unseen."""
    lengths_and_body_intact = decode_record(record[:written].ljust(len(record), b"\0"))
    return lengths_and_body_intact.body == decode_record(record).body


def patched(at: int, value: bytes) -> bytes:
    return VECTOR[:at] + value + VECTOR[at + len(value) :]


@pytest.mark.parametrize(
    ("record", "size", "reason"),
    [
        (patched(4, b"\0\0\0\0"), 0, "magic is 0x00000000"),
        (patched(0, b"\0\0\0\0"), 0, "size is given as 0"),
        (patched(0, b"\xff\xff\xff\xff"), 0, "size is given as -1"),
        (patched(0, b"\0\0\0\x6d"), 0, "size is given as 109"),
        (patched(0, b"\0\0\0\x6b"), 0, "do not add up"),
        (patched(36, b"\0\0\0\x10"), 0, "body length is given as|do not add up|topic length"),
        (patched(36, b"\0\0\0\x30"), 0, "size is given as 108, possible are 115"),
        (patched(84, b"\x7f\xff\xff\xff"), 0, "body length is given as 2147483647"),
        (patched(84, b"\xff\xff\xff\xff"), 0, "body length is given as -1"),
        (patched(90, b"\x80"), 0, "topic length is given as -128"),
        (patched(90, b"\x7f"), 0, "topic length is given as 127"),
        (patched(97, b"\xff\xff"), 0, "properties -1 do not add up"),
        (patched(88, b"ho"), 108, "checksum is"),
        (patched(8, b"\0\0\0\0"), 108, "the record says 0"),
    ],
)
def test_each_kind_of_damage_is_named(record: bytes, size: int, reason: str) -> None:
    check = check_record(record, 0, len(record))
    assert check.kind is RecordKind.BAD
    assert check.size == size
    with pytest.raises(RecordProblem, match=reason):
        decode_record(record)


def test_the_checksum_can_be_left_out() -> None:
    record = patched(88, b"ho")
    assert check_record(record, 0, len(record), check_crc=False).kind is RecordKind.MESSAGE
    assert decode_record(record, check_crc=False).body == b"ho"


def test_empty_bodies_are_allowed() -> None:
    record = encode_record(topic="T", body=b"")
    assert check_record(record, 0, len(record)).kind is RecordKind.MESSAGE
    assert decode_record(record).body == b""


def test_the_limit_bounds_a_record() -> None:
    assert check_record(VECTOR + b"more", 0, 107).kind is RecordKind.BAD
    assert check_record(VECTOR + b"more", 0, 108).kind is RecordKind.MESSAGE


def test_blank_markers_reach_to_the_end_of_the_file() -> None:
    marker = encode_blank(20)
    assert marker == (20).to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big")
    assert check_record(marker + b"\xee" * 12, 0, 20) == (RecordKind.BLANK, 20, "")
    assert check_record(marker, 0, 8).kind is RecordKind.BAD
    assert check_record(encode_blank(8), 0, 8) == (RecordKind.BLANK, 8, "")
    with pytest.raises(WireError, match="only 7 are left"):
        encode_blank(7)


def test_unwritten_space_is_the_end() -> None:
    for room in (0, 1, 7, 8, 90, 500):
        assert check_record(bytes(room), 0, room) == (RecordKind.END, 0, "")
    assert check_record(b"\0\0\1", 0, 3).kind is RecordKind.BAD


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"topic": "t" * 128}, "limit is 127"),
        ({"properties": bytes(32768)}, "limit is 32767"),
        ({"queue_id": 1 << 31}, "cannot be encoded"),
        ({"born_host": b"1234567"}, "not 7"),
        ({"store_host": "nowhere"}, "not a host address"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(WireError, match=text):
        encode_record(**(VECTOR_FIELDS | change))


def test_long_topics_of_5_x_are_read() -> None:
    record = encode_record(topic="t" * 200, body=b"x", magic=MESSAGE_MAGIC_V2)
    assert len(record) == 91 + 1 + 200 + 1
    assert decode_record(record).topic == "t" * 200


def test_hosts_may_be_given_as_bytes() -> None:
    fields = VECTOR_FIELDS | {
        "born_host": pack_host("10.0.0.1:5555"),
        "store_host": pack_host("10.0.0.2:10911"),
    }
    assert encode_record(**fields) == VECTOR


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GOLDEN / "manifest.json").read_text())
    return loaded


@pytest.fixture(scope="module")
def golden_log(manifest: dict[str, Any]) -> GoldenLog:
    """Records by their offset, the blank markers and the end of a log written by the Java broker."""
    records: dict[int, bytes] = {}
    blanks: list[dict[str, int]] = []
    end = 0
    for path in sorted((GOLDEN / "store/commitlog").iterdir()):
        data = path.read_bytes()
        assert len(data) == manifest["config"]["mappedFileSizeCommitLog"]
        base, pos = int(path.name), 0
        while pos < len(data):
            kind, size, reason = check_record(data, pos, len(data))
            assert kind is not RecordKind.BAD, reason
            if kind is RecordKind.MESSAGE:
                records[base + pos] = data[pos : pos + size]
                end = base + pos + size
            elif kind is RecordKind.BLANK:
                blanks.append({"offset": base + pos, "size": size})
            else:
                break
            pos += size
    return records, blanks, end


def test_the_log_of_a_java_broker_is_walked_to_its_end(
    manifest: dict[str, Any], golden_log: GoldenLog
) -> None:
    records, blanks, end = golden_log
    assert blanks == manifest["blanks"]
    assert end == manifest["commitLogEnd"]
    assert set(records) == {expected["commitLogOffset"] for expected in manifest["messages"]}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_messages_of_a_java_broker_are_read_in_full(manifest: dict[str, Any], golden_log: GoldenLog) -> None:
    records, _, _ = golden_log
    for expected in manifest["messages"]:
        record = records[expected["commitLogOffset"]]
        assert sha256(record) == expected["rawSha256"]
        message = decode_record(record)
        body = message.decoded_body()
        found = {
            "topic": message.topic,
            "queueId": message.queue_id,
            "queueOffset": message.queue_offset,
            "commitLogOffset": message.physical_offset,
            "storeSize": message.size,
            "msgId": message.properties.get("UNIQ_KEY"),
            "offsetMsgId": message.offset_msg_id,
            "sysFlag": message.sys_flag,
            "flag": message.flag,
            "bornTimestamp": message.born_ms,
            "bornHost": message.born_host,
            "storeTimestamp": message.store_ms,
            "storeHost": message.store_host,
            "reconsumeTimes": message.reconsume_times,
            "preparedTransactionOffset": message.prepared_offset,
            "bodyCRC": message.body_crc,
            "bodyLength": len(body),
            "bodySha256": sha256(body),
            "tags": message.tags,
            "keys": message.keys,
            "properties": message.properties,
            "source": expected["source"],
            "rawSha256": sha256(record),
            "storedBodyLength": len(message.body),
            "storedBodySha256": sha256(message.body),
        }
        assert found == expected


def test_messages_of_a_java_broker_are_written_alike(golden_log: GoldenLog) -> None:
    records, _, _ = golden_log
    for record in records.values():
        assert reread(record) == record
