from __future__ import annotations

from orbitmq.client.admin.trace import Report, time_lines
from orbitmq.wire.trace import EndTransactionTrace, PubTrace, SubAfterTrace, SubBeforeTrace

T0 = 1_700_000_000_000
PRODUCER, CONSUMER = "10.0.0.1:4000", "10.0.0.2:5000"


def pub(
    msg_id: str = "ID1", at: int = 0, *, success: bool = True, msg_type: int = 0, keys: str = "k1 k2"
) -> PubTrace:
    return PubTrace(
        timestamp_ms=T0 + at,
        region_id="R",
        group="pg",
        topic="Orders",
        msg_id=msg_id,
        tags="paid",
        keys=keys,
        store_host="10.9.9.9:10911",
        body_bytes=5,
        cost_ms=7,
        msg_type=msg_type,
        offset_msg_id="OFF1",
        success=success,
    )


def before(request_id: str, at: int, *, retry: int = 0, msg_id: str = "ID1") -> SubBeforeTrace:
    return SubBeforeTrace(T0 + at, "R", "cg", request_id, msg_id, retry, "k1 k2")


def after(request_id: str, cost: int, *, success: bool = True, code: int = 0, at: int = 0) -> SubAfterTrace:
    stamp = T0 + at if at else 0
    return SubAfterTrace(request_id, "ID1", cost, success, "k1 k2", code, stamp, "cg" if at else None)


def test_a_message_from_sending_to_consumption_with_a_retry() -> None:
    reports = [
        Report(after("r2", 3, at=10_040), CONSUMER),
        Report(before("r1", 20), CONSUMER),
        Report(pub(), PRODUCER),
        Report(after("r1", 5, success=False, code=2), CONSUMER),  # an older client: no time, no group
        Report(before("r2", 10_030, retry=1), CONSUMER),
        Report(before("r2", 10_030, retry=1), CONSUMER),  # sent twice
        Report(pub("ID2", keys="other"), PRODUCER),  # in the same batch, about another message
    ]
    (line,) = time_lines(reports, "ID1")
    assert (line.msg_id, line.topic, line.tag, line.keys) == ("ID1", "Orders", "paid", ["k1", "k2"])
    told = [(e.at_ms - T0, e.what, e.group, e.place, e.cost_ms, e.success, e.attempt) for e in line.events]
    assert told == [
        (0, "sent", "pg", PRODUCER, 7, True, None),
        (20, "delivered", "cg", CONSUMER, None, True, 0),
        (25, "failed with an exception", "cg", CONSUMER, 5, False, 0),
        (10_030, "delivered (retry 1)", "cg", CONSUMER, None, True, 1),
        (10_040, "consumed", "cg", CONSUMER, 3, True, 1),
    ]


def test_a_key_may_lead_to_several_messages() -> None:
    lines = time_lines([Report(pub("ID1", 5), PRODUCER), Report(pub("ID2", 1), PRODUCER)], "k2")
    assert sorted(line.msg_id for line in lines) == ["ID1", "ID2"]
    assert time_lines([Report(pub(), PRODUCER)], "k") == []


def test_a_transaction_and_its_end() -> None:
    def end(state: str, at: int, from_check: bool) -> EndTransactionTrace:
        return EndTransactionTrace(
            T0 + at, "R", "pg", "Orders", "ID1", None, "k1", "h:1", 2, "ID1", state, from_check
        )

    reports = [
        Report(pub(msg_type=1), PRODUCER),
        Report(end("UNKNOW", 10, False), PRODUCER),
        Report(end("COMMIT_MESSAGE", 60_000, True), PRODUCER),
    ]
    (line,) = time_lines(reports, "ID1")
    assert [(event.what, event.success) for event in line.events] == [
        ("prepared", True),
        ("transaction undecided", False),
        ("transaction committed, after the broker asked", True),
    ]


def test_a_send_that_failed_says_so() -> None:
    (line,) = time_lines([Report(pub(success=False), PRODUCER)], "ID1")
    assert (line.events[0].what, line.events[0].success) == ("sent, but it failed", False)


def test_a_result_without_its_beginning_or_time_is_left_out() -> None:
    (line,) = time_lines([Report(pub(), PRODUCER), Report(after("lost", 5), CONSUMER)], "ID1")
    assert [event.what for event in line.events] == ["sent"]
