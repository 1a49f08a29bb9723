from __future__ import annotations

import pytest

from orbitmq.wire.codes import LANGUAGES, RequestCode, ResponseCode, SysFlag, request_name, response_name


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("SEND_MESSAGE", 10),
        ("PULL_MESSAGE", 11),
        ("HEART_BEAT", 34),
        ("REGISTER_BROKER", 103),
        ("GET_ROUTEINFO_BY_TOPIC", 105),
        ("SEND_MESSAGE_V2", 310),
        ("SEND_BATCH_MESSAGE", 320),
        ("PUSH_REPLY_MESSAGE_TO_CLIENT", 326),
        ("POP_MESSAGE", 200050),
    ],
)
def test_request_codes_have_javas_numbers(name: str, number: int) -> None:
    assert RequestCode[name] == number


def test_languages_stand_at_their_ordinal() -> None:
    assert [LANGUAGES.index(name) for name in ("JAVA", "CPP", "PYTHON", "OTHER", "GO", "RUST")] == [
        0,
        1,
        3,
        7,
        9,
        12,
    ]


def test_transaction_kinds_lie_inside_their_mask() -> None:
    kinds = (SysFlag.TX_NONE, SysFlag.TX_PREPARED, SysFlag.TX_COMMIT, SysFlag.TX_ROLLBACK)
    assert [kind & SysFlag.TX_MASK for kind in kinds] == [0, 4, 8, 12]


def test_numbers_that_5x_reuses_keep_their_older_name() -> None:
    assert ResponseCode(209).name == "UPDATE_AND_CREATE_ACL_CONFIG_FAILED"
    assert ResponseCode.POLLING_FULL is ResponseCode(209)


def test_names_for_people() -> None:
    assert request_name(11) == "PULL_MESSAGE"
    assert request_name(4711) == "request 4711"
    assert response_name(16) == "NO_PERMISSION"
    assert response_name(4711) == "response 4711"
