"""What a redriven message looks like, and which dead letters a filter means. See also the process tests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbitmq.client.admin.dead import DeadFilter, failure_reason, origin_topic, parse_reason
from orbitmq.client.admin.redrive import redriven, redriven_id
from orbitmq.client.errors import BadRequest
from orbitmq.wire.message import Message, decode_record, encode_record
from orbitmq.wire.message_id import uniq_id_time_ms
from orbitmq.wire.properties import decode_properties, encode_properties

DAY_MS = 86_400_000
NOW = 1_700_000_000_000


def dead(
    *,
    offset: int = 4096,
    stored: int = NOW,
    host: str = "10.0.0.2:10911",
    sys_flag: int = 0,
    **properties: str,
) -> Message:
    record = encode_record(
        topic="%DLQ%g",
        body=b"body",
        properties=encode_properties({"RETRY_TOPIC": "Orders", "UNIQ_KEY": "U1", **properties}),
        physical_offset=offset,
        store_ms=stored,
        store_host=host,
        sys_flag=sys_flag,
        flag=7,
        reconsume_times=17,
    )
    return decode_record(record)


def test_the_copy_has_what_the_user_gave_and_nothing_of_the_way_it_went() -> None:
    letter = dead(
        KEYS="k1 k2",
        TAGS="paid",
        mine="v",
        ORIGIN_MESSAGE_ID="FIRST",
        DELAY="0",
        WAIT="false",
        CLUSTER="c",
        REAL_TOPIC="%RETRY%g",
        REAL_QID="0",
        TRAN_MSG="true",
        PGROUP="pg",
        TRANSACTION_CHECK_TIMES="3",
        TIMER_OUT_MS="5",
        DLQ_REASON="no stock",
        DLQ_ORIGIN_TOPIC="Orders",
    )
    copy = redriven(letter, "Orders")
    assert (copy.topic, copy.body, copy.flag) == ("Orders", b"body", 7)
    assert decode_properties(copy.properties) == {
        "KEYS": "k1 k2",
        "TAGS": "paid",
        "mine": "v",
        "ORIGIN_MESSAGE_ID": "FIRST",
        "DLQ_ORIGIN_MESSAGE_ID": "U1",
        "UNIQ_KEY": copy.msg_id,
        "WAIT": "true",
    }


def test_a_compressed_body_stays_compressed_and_no_transaction_is_opened() -> None:
    assert redriven(dead(sys_flag=0x301 | 0x8), "Orders").sys_flag == 0x301


def test_the_first_delivery_is_named_even_if_nobody_did_before() -> None:
    letter = dead()
    assert (
        decode_properties(redriven(letter, "Orders").properties)["ORIGIN_MESSAGE_ID"] == letter.offset_msg_id
    )


def test_the_id_is_always_the_same_and_differs_between_letters() -> None:
    assert redriven_id(dead()) == redriven_id(dead(mine="other"))
    ids = {
        redriven_id(letter)
        for letter in (
            dead(),
            dead(offset=4097),
            dead(host="10.0.0.3:10911"),
            dead(host="10.0.0.2:10912"),
            dead(stored=NOW + 1),
        )
    }
    assert len(ids) == 5
    assert {len(msg_id) for msg_id in ids} == {32}
    assert len(redriven_id(dead(host="[fd00::1]:10911"))) == 56


@given(st.integers(0, 2**41))
def test_tools_that_look_near_the_time_in_the_id_find_the_copy(stored: int) -> None:
    """They start at the time they read from it, which must not be later than the redrive."""
    assert uniq_id_time_ms(redriven_id(dead(stored=stored)), stored + 1) <= stored


def test_filters() -> None:
    letter = dead(KEYS="k1 k2", TAGS="paid", DLQ_REASON="Connection TIMEOUT after 3 s")
    for wanted in (
        DeadFilter(),
        DeadFilter(since_ms=NOW, until_ms=NOW),
        DeadFilter(key="k2"),
        DeadFilter(tags="open || paid"),
        DeadFilter(reason=parse_reason("timeout")),
        DeadFilter(reason=parse_reason("^connection .* 3 s$")),
    ):
        assert wanted.matches(letter)
    for wanted in (
        DeadFilter(since_ms=NOW + 1),
        DeadFilter(until_ms=NOW - 1),
        DeadFilter(key="k"),
        DeadFilter(tags="open"),
        DeadFilter(reason=parse_reason("stock")),
    ):
        assert not wanted.matches(letter)
    assert not DeadFilter(reason=parse_reason("x")).matches(dead())
    assert DeadFilter(reason=parse_reason("^$")).matches(dead()), "those whose consumer gave no reason"


def test_a_pattern_that_is_none() -> None:
    with pytest.raises(BadRequest, match="regular expression"):
        parse_reason("(")


def test_where_it_came_from() -> None:
    assert origin_topic(dead()) == "Orders"
    assert origin_topic(dead(RETRY_TOPIC="", DLQ_ORIGIN_TOPIC="Orders")) == "Orders"
    assert origin_topic(dead(RETRY_TOPIC="")) is None
    assert failure_reason(dead()) is None
