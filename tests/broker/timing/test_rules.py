from __future__ import annotations

import pytest

from orbitmq.broker.send import Draft
from orbitmq.broker.timing import rules
from orbitmq.net.errors import RequestError
from orbitmq.wire.codes import ResponseCode, SysFlag
from orbitmq.wire.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

NOW = 1_800_000_000_123
LEVELS = (1_000, 5_000, 10_000)
LIMIT = 40 * 86_400_000


def draft(topic: str = "TopicA", sys_flag: int = 0, **properties: str) -> Draft:
    return Draft(topic, 3, b"x", dict(properties), sys_flag, 0, NOW, bytes(8))


def divert(one: Draft) -> int | None:
    return rules.divert(one, NOW, LEVELS, LIMIT)


def test_a_plain_message_is_left_alone() -> None:
    one = draft(KEYS="k")
    assert divert(one) is None
    assert (one.topic, one.queue_id, one.properties) == ("TopicA", 3, {"KEYS": "k"})


def test_a_level_goes_to_its_queue_of_the_schedule_topic() -> None:
    one = draft(DELAY="2")
    assert divert(one) == NOW + 5_000
    assert (one.topic, one.queue_id, one.delay_ms) == (SCHEDULE_TOPIC, 1, 5_000)
    assert one.properties == {"DELAY": "2", "REAL_TOPIC": "TopicA", "REAL_QID": "3"}


def test_a_level_above_the_highest_is_the_highest() -> None:
    one = draft(DELAY="99")
    divert(one)
    assert (one.queue_id, one.properties["DELAY"]) == (2, "3")


def test_a_level_wins_over_a_time_and_the_time_is_forgotten() -> None:
    one = draft(DELAY="1", TIMER_DELIVER_MS=str(NOW + 99), TIMER_DELAY_SEC="1", TIMER_DELAY_MS="1")
    divert(one)
    assert one.topic == SCHEDULE_TOPIC
    assert not set(one.properties) & set(rules.TIMER_PROPERTIES)


@pytest.mark.parametrize("text", ["x", "-1", "1.5", "", " 1", "0x1", "१"])
def test_a_level_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(RequestError, match=r"DELAY=.* is not known; give 1 to 3") as refused:
        divert(draft(DELAY=text))
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("properties", "due_ms"),
    [
        ({"TIMER_DELIVER_MS": str(NOW + 1)}, NOW + 1),
        ({"TIMER_DELAY_MS": "1500"}, NOW + 1_500),
        ({"TIMER_DELAY_SEC": "90"}, NOW + 90_000),
        ({"TIMER_DELAY_SEC": "1", "TIMER_DELAY_MS": "5", "TIMER_DELIVER_MS": str(NOW + 7)}, NOW + 1_000),
        ({"TIMER_DELIVER_MS": str(NOW + LIMIT)}, NOW + LIMIT),
        ({"DELAY": "0", "TIMER_DELAY_MS": "5"}, NOW + 5),
    ],
)
def test_a_time_goes_to_the_timer_topic(properties: dict[str, str], due_ms: int) -> None:
    one = draft(**properties)
    assert divert(one) == due_ms
    assert (one.topic, one.queue_id, one.delay_ms) == (TIMER_TOPIC, 0, None)
    assert one.properties == {
        **properties,
        "REAL_TOPIC": "TopicA",
        "REAL_QID": "3",
        "TIMER_OUT_MS": str(due_ms),
    }


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELIVER_MS": str(NOW)},
        {"TIMER_DELIVER_MS": "5"},
        {"TIMER_DELIVER_MS": "-5"},
        {"TIMER_DELAY_MS": "0"},
        {"TIMER_DELAY_SEC": "-99999999999999999999999"},
        {"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "1"},
        {"DELAY": "0"},
    ],
)
def test_what_is_due_is_delivered_at_once(properties: dict[str, str]) -> None:
    one = draft(**properties)
    assert divert(one) is None
    assert (one.topic, one.properties) == ("TopicA", properties)


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELIVER_MS": str(NOW + LIMIT + 1)},
        {"TIMER_DELAY_MS": str(LIMIT + 1)},
        {"TIMER_DELAY_SEC": "9" * 30},
    ],
)
def test_too_far_ahead_is_refused_with_the_limit(properties: dict[str, str]) -> None:
    with pytest.raises(RequestError, match=r"at most 3456000 s \(40 days, timerMaxDelaySec\)") as refused:
        divert(draft(**properties))
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("name", rules.TIMER_PROPERTIES)
@pytest.mark.parametrize("text", ["soon", "1e3", "", "1 "])
def test_a_time_that_is_none_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(RequestError, match=f"{name}=.* is not a whole number of") as refused:
        divert(draft(**{name: text}))
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("properties", [{"DELAY": "1"}, {"TIMER_DELAY_SEC": "5"}])
def test_prepared_and_rolled_back_messages_do_not_wait(properties: dict[str, str]) -> None:
    assert divert(draft(topic=HALF_TOPIC, **properties)) is None
    assert divert(draft(sys_flag=SysFlag.TX_PREPARED, **properties)) is None
    assert divert(draft(sys_flag=SysFlag.TX_ROLLBACK, **properties)) is None
    assert divert(draft(sys_flag=SysFlag.TX_COMMIT, **properties)) is not None


def test_cancelling_what_is_due_is_refused() -> None:
    with pytest.raises(RequestError, match="has passed"):
        divert(draft(TIMER_DELIVER_MS="1", TIMER_DEL_UNIQKEY="A"))
