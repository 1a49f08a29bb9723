"""Handlers get what their annotations ask for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

import msgspec
import pytest

from orbitmq.client.decoding import Undecodable, arguments_of, decoder_for
from orbitmq.client.errors import BadRequest
from orbitmq.client.message import Message
from orbitmq.wire.message import encode_record


@dataclass
class Order:
    number: int
    region: str = "eu"


class Payment(msgspec.Struct):
    amount: float


class Row(TypedDict):
    number: int


class Model:
    """What is common to pydantic's models."""

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def model_validate_json(cls, data: bytes) -> Model:
        if data == b"bad":
            raise ValueError("1 validation error")
        return cls(data.decode())


def message(body: bytes) -> Message:
    return Message(encode_record(topic="T", body=body), 0, "broker-a")


@pytest.mark.parametrize(
    ("kind", "body", "value"),
    [
        (bytes, b"\xff", b"\xff"),
        (str, "äh".encode(), "äh"),
        (dict, b'{"a":1}', {"a": 1}),
        (dict[str, int], b'{"a":1}', {"a": 1}),
        (list[int], b"[1,2]", [1, 2]),
        (int, b"42", 42),
        (Order, b'{"number":7}', Order(7)),
        (Payment, b'{"amount":1.5}', Payment(1.5)),
        (Row, b'{"number":7}', {"number": 7}),
        (Order | None, b"null", None),
    ],
)
def test_bodies_become_values(kind: Any, body: bytes, value: Any) -> None:
    assert decoder_for(kind)(body) == value


def test_a_pydantic_model_validates_itself() -> None:
    assert decoder_for(Model)(b"x").text == "x"

    async def handle(model: Model) -> None: ...

    with pytest.raises(Undecodable, match="is not a Model.*1 validation error"):
        arguments_of(handle)(message(b"bad"))


def test_signatures() -> None:
    async def plain(msg): ...  # type: ignore[no-untyped-def]
    async def annotated(msg: Message) -> None: ...
    async def body(order: Order) -> None: ...
    async def both(order: Order, msg: Message) -> None: ...
    async def turned(msg: Message, order: Order, dry: bool = False, *, loud: bool = False) -> None: ...

    class Callable_:
        async def __call__(self, order: Order) -> None: ...

        async def method(self, text: str) -> None: ...

    async def prepared(db: object, order: Order) -> None: ...

    msg = message(b'{"number":7}')
    assert arguments_of(plain)(msg) == (msg,) == arguments_of(annotated)(msg)
    assert arguments_of(body)(msg) == (Order(7),)
    assert arguments_of(both)(msg) == (Order(7), msg)
    assert arguments_of(turned)(msg) == (msg, Order(7))
    assert arguments_of(Callable_())(msg) == (Order(7),)
    assert arguments_of(Callable_().method)(msg) == ('{"number":7}',)
    assert arguments_of(partial(prepared, object()))(msg) == (Order(7),)


def test_what_cannot_work_is_refused_when_the_handler_is_registered() -> None:
    async def nothing() -> None: ...
    async def two(a: Order, b: Payment) -> None: ...
    async def unknown(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821
    async def odd(a: type) -> None: ...

    for handler in (nothing, two):
        with pytest.raises(BadRequest, match="arguments of a message") as caught:
            arguments_of(handler)
        assert "order: Order, msg: Message" in caught.value.hint
    with pytest.raises(BadRequest, match=r"annotations of handler .*unknown cannot be read: name 'Missing'"):
        arguments_of(unknown)
    with pytest.raises(BadRequest, match="cannot be decoded to") as caught:
        arguments_of(odd)
    assert "dataclass" in caught.value.hint


@pytest.mark.parametrize(("kind", "body"), [(Order, b'{"number":"x"}'), (Order, b"{"), (str, b"\xff")])
def test_a_body_of_another_kind_names_the_message_and_the_type(kind: Any, body: bytes) -> None:
    async def handle(value) -> None: ...  # type: ignore[no-untyped-def]

    handle.__annotations__["value"] = kind
    with pytest.raises(Undecodable, match=f"is not a {kind.__name__}, as handler .*handle expects"):
        arguments_of(handle)(message(body))
