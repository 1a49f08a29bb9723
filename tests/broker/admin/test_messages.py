from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import pack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orbitmq.broker.admin import messages
from orbitmq.wire.codes import RequestCode as R
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.message import Message, decode_records
from tests.broker.admin.world import T0, World

FOREVER = 2**63 - 1


def query(
    world: World, topic: str, key: str, *, begin: int = 0, end: int = FOREVER, num: int = 32, **more: str
) -> list[Message]:
    answer = world.ok(
        R.QUERY_MESSAGE, topic=topic, key=key, maxNum=num, beginTimestamp=begin, endTimestamp=end, **more
    )
    assert answer.ext.keys() == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
    return decode_records(answer.body)


def bodies(found: list[Message]) -> list[bytes]:
    return [message.body for message in found]


def missing(world: World, topic: str, key: str, **more: str) -> str:
    code, remark = world.refusal(
        R.QUERY_MESSAGE, topic=topic, key=key, maxNum=32, beginTimestamp=0, endTimestamp=FOREVER, **more
    )
    assert code == ResponseCode.QUERY_NOT_FOUND
    return remark


def test_messages_are_found_by_each_of_their_keys_newest_first(world: World) -> None:
    for number in range(5):
        world.put("orders", body=b"m%d" % number, KEYS=f"order-1 other{number}", UNIQ_KEY=f"ID{number}")
    world.put("orders", KEYS="unrelated")
    assert bodies(query(world, "orders", "order-1")) == [b"m4", b"m3", b"m2", b"m1", b"m0"]
    assert bodies(query(world, "orders", "other3")) == [b"m3"]
    assert bodies(query(world, "orders", "order-1", num=2)) == [b"m4", b"m3"]
    assert bodies(query(world, "orders", "ID2")) == [b"m2"]
    assert "time range" in missing(world, "orders", "order-2")
    assert "time range" in missing(world, "refunds", "order-1")


def test_a_clash_of_hashes_never_shows_a_foreign_message(world: World) -> None:
    # "Aa" and "BB" have the same hash in Java, and so have names that differ only in them.
    world.put("orders", body=b"mine", KEYS="Aa")
    world.put("topicAa", body=b"other topic", KEYS="k")
    for _ in range(40):
        world.put("orders", body=b"foreign", KEYS="BB")
    assert bodies(query(world, "orders", "Aa", num=1)) == [b"mine"]
    assert len(query(world, "orders", "BB", num=64)) == 40
    missing(world, "topicBB", "k")


def test_a_unique_id_is_not_confused_with_a_key_of_the_same_text(world: World) -> None:
    world.put("orders", body=b"the one", UNIQ_KEY="ID1", KEYS="ID1")
    world.put("orders", body=b"reply to it", UNIQ_KEY="ID2", KEYS="ID1")
    assert bodies(query(world, "orders", "ID1")) == [b"reply to it", b"the one"]
    assert bodies(query(world, "orders", "ID1", _UNIQUE_KEY_QUERY="true", num=1)) == [b"the one"]
    assert len(query(world, "orders", "ID1", _UNIQUE_KEY_QUERY="false")) == 2


def test_limits_of_the_broker_hold_whatever_is_asked(world: World) -> None:
    world.config.max_msgs_num_batch = 3
    world.config.default_query_max_num = 2
    for _ in range(5):
        world.put("orders", KEYS="k", UNIQ_KEY="ID")
    assert len(query(world, "orders", "k", num=1000)) == 3
    assert len(query(world, "orders", "ID", num=1000, _UNIQUE_KEY_QUERY="true")) == 2


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, list[int]]]:
    world = World(tmp_path_factory.mktemp("timed"))
    times = []
    for gap in (0, 1, 998, 1, 1, 2500, 499, 501, 3, 10_000, 7):
        world.now += gap
        times.append(world.put("orders", KEYS="k").store_ms)
    yield world, times
    world.store.close()


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(begin=st.integers(-100, 20_000), span=st.integers(0, 20_000))
def test_a_window_of_time_is_exact_to_the_millisecond(
    timed: tuple[World, list[int]], begin: int, span: int
) -> None:
    world, times = timed
    low, high = T0 + begin, T0 + begin + span
    expected = [at for at in reversed(times) if low <= at <= high]
    answer = world.ask(
        R.QUERY_MESSAGE, topic="orders", key="k", maxNum=32, beginTimestamp=low, endTimestamp=high
    )
    assert answer.code == (0 if expected else ResponseCode.QUERY_NOT_FOUND)
    assert [message.store_ms for message in decode_records(answer.body)] == expected


def test_an_answer_fits_into_a_frame(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        world.put("orders", body=bytes([number]) * 1000, KEYS="k")
    monkeypatch.setattr(messages, "MAX_BODY_BYTES", 2500)
    assert [body[0] for body in bodies(query(world, "orders", "k"))] == [3, 2]


def test_without_an_index_the_answer_names_the_setting(tmp_path: Path) -> None:
    world = World(tmp_path, index=False)
    world.put("orders", KEYS="k")
    assert "messageIndexEnable" in missing(world, "orders", "k")
    world.store.close()


def test_a_record_is_seen_by_its_place_in_the_log_and_only_there(world: World) -> None:
    world.put("orders", body=b"first")
    record = world.store.read_record(0)
    assert record is not None
    fake = world.put("orders", body=record)
    assert world.ok(R.VIEW_MESSAGE_BY_ID, offset=0).body == record
    inside = fake.position + world.store.read_record(fake.position).index(record)  # type: ignore[union-attr]
    for offset in (inside, 1, -1, 10**12, FOREVER):
        code, remark = world.refusal(R.VIEW_MESSAGE_BY_ID, offset=offset)
        assert code == ResponseCode.SYSTEM_ERROR
        assert f"can not find message by the offset, {offset}" in remark


def test_queue_entries_are_shown_as_they_lie(world: World) -> None:
    first, second = world.put("orders", TAGS="TagA"), world.put("orders")
    told = world.json(R.QUERY_CONSUME_QUEUE, topic="orders", queueId=0, index=0, count=5)
    assert told == {
        "maxQueueIndex": 2,
        "minQueueIndex": 0,
        "queueData": [
            {"eval": False, "physicOffset": first.position, "physicSize": first.size, "tagsCode": 2598919},
            {"eval": False, "physicOffset": second.position, "physicSize": second.size, "tagsCode": 0},
        ],
    }
    told = world.json(R.QUERY_CONSUME_QUEUE, topic="orders", queueId=0, index=1, count=1)
    assert [row["physicOffset"] for row in told["queueData"]] == [second.position]
    assert world.json(R.QUERY_CONSUME_QUEUE, topic="orders", queueId=0, index=2)["queueData"] == []
    assert "3@orders" in world.refusal(R.QUERY_CONSUME_QUEUE, topic="orders", queueId=3, index=0)[1]


def test_queue_entries_for_a_group_come_with_its_subscription(world: World) -> None:
    world.put("orders")
    ask = {"topic": "orders", "queueId": 0, "index": 0, "count": 1, "consumerGroup": "billing"}
    assert world.json(R.QUERY_CONSUME_QUEUE, **ask)["filterData"] == "billing@orders is not online!"
    world.online("billing", "c1", "orders", tags="A")
    assert world.json(R.QUERY_CONSUME_QUEUE, **ask)["subscriptionData"]["subString"] == "A"


def offset(world: World, code: int, queue_id: int = 0, **more: object) -> int:
    return int(world.ok(code, topic="orders", queueId=queue_id, **more).ext["offset"])


def test_ends_and_times_of_a_queue(world: World) -> None:
    world.topic("orders", 2)
    stored = [world.put("orders") for _ in range(4)]
    assert offset(world, R.GET_MIN_OFFSET) == 0
    assert offset(world, R.GET_MAX_OFFSET) == 4
    earliest = world.ok(R.GET_EARLIEST_MSG_STORETIME, topic="orders", queueId=0)
    assert earliest.ext == {"timestamp": str(stored[0].store_ms)}
    none = world.ok(R.GET_EARLIEST_MSG_STORETIME, topic="orders", queueId=1)
    assert none.ext == {"timestamp": "-1"}
    assert offset(world, R.GET_MAX_OFFSET, 1) == offset(world, R.GET_MIN_OFFSET, 1) == 0


def test_offset_by_time_with_both_boundaries(world: World) -> None:
    world.topic("orders", 2)
    stored = []
    for _ in range(4):
        world.now += 100
        stored.append(world.put("orders").store_ms)

    def at(time_ms: int, boundary: str = "lower") -> int:
        return offset(world, R.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=time_ms, boundaryType=boundary)

    assert (at(0), at(stored[2]), at(stored[2] - 50), at(stored[3] + 1)) == (0, 2, 2, 4)
    assert (at(0, "upper"), at(stored[2], "upper"), at(stored[2] - 50, "upper")) == (0, 2, 1)
    assert at(stored[3] + 1, "UPPER") == 3
    assert offset(world, R.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=stored[2]) == 2
    assert offset(world, R.SEARCH_OFFSET_BY_TIMESTAMP, 1, timestamp=5) == 0


@pytest.mark.parametrize(
    "code", [R.GET_MAX_OFFSET, R.GET_MIN_OFFSET, R.GET_EARLIEST_MSG_STORETIME, R.SEARCH_OFFSET_BY_TIMESTAMP]
)
def test_a_topic_that_does_not_exist_has_no_offsets(world: World, code: int) -> None:
    answer, _ = world.refusal(code, topic="nope", queueId=0, timestamp=1)
    assert answer == ResponseCode.TOPIC_NOT_EXIST
    # The broker's own queues have no entry in the topic table.
    world.put("RMQ_SYS_TRANS_OP_HALF_TOPIC")
    world.ok(code, topic="RMQ_SYS_TRANS_OP_HALF_TOPIC", queueId=0, timestamp=1)


def test_a_damaged_record_is_skipped_and_logged(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.put("orders", body=b"good", KEYS="k")
    bad = world.put("orders", body=b"bad", KEYS="k")
    read = world.store.read_record
    monkeypatch.setattr(
        world.store, "read_record", lambda at: read(at) if at != bad.position else pack(">iI", 8, 0) * 20
    )
    assert bodies(query(world, "orders", "k")) == [b"good"]
    assert str(bad.position) in caplog.text
