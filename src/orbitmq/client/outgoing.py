"""What a user wants sent, checked: bodies, tags, keys, properties and delivery times.

Every refusal happens here, before anything is sent, and says what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from orbitmq.client.errors import BadRequest
from orbitmq.client.times import Duration, millis, moment_ms
from orbitmq.wire.properties import MAX_PROPERTIES_BYTES, NAME_END, PAIR_END, RESERVED_NAMES, Prop
from orbitmq.wire.topics import is_send_forbidden, validate_topic

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
# Room for UNIQ_KEY, which is added last.
_MAX_TEXT: Final = MAX_PROPERTIES_BYTES - 80
_to_json = msgspec.json.Encoder().encode

OrderKey = str | int


class Out(msgspec.Struct, frozen=True, kw_only=True):
    """One message of many, for `send_many` when a body alone does not say enough."""

    body: bytes
    tag: str | None = None
    keys: str | Sequence[str] | None = None
    properties: Mapping[str, str] | None = None
    order_key: OrderKey | None = None


def check_topic(topic: Any) -> str:
    if not isinstance(topic, str):
        raise BadRequest(f"the topic is {type(topic).__name__}, not text", hint='pass its name: "orders"')
    if reason := validate_topic(topic):
        raise BadRequest(reason, hint="rename the topic")
    if is_send_forbidden(topic):
        raise BadRequest(f"topic '{topic}' belongs to the broker", hint="send to a topic of your own")
    return topic


def check_body(body: Any, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    if isinstance(body, str):
        raise BadRequest("the body is text, not bytes", hint="pass body.encode(), or b'...' for a literal")
    if not isinstance(body, bytes | bytearray | memoryview):
        raise BadRequest(
            f"the body is {type(body).__name__}, not bytes",
            hint="encode it first, for example with json.dumps(...).encode() or msgspec.json.encode(...)",
        )
    if not body:
        raise BadRequest(
            "the body is empty", hint="official clients refuse empty messages; send at least one byte"
        )
    # len() of a memoryview counts items, not bytes, so it is made bytes first.
    made = bytes(body)
    if len(made) > max_bytes:
        raise BadRequest(
            f"the body has {len(made):,} bytes, allowed are {max_bytes:,}",
            hint="split it or store it elsewhere and send where it is",
        )
    return made


def delivery_properties(
    deliver_after: Duration | None, deliver_at: datetime | None, delay_level: int | None
) -> dict[str, str]:
    """The properties that make a broker hold the message back; empty when it is to be delivered at once.

    A delay is sent as one: the broker's clock counts it, whatever the clock of this machine says.
    """
    given = [
        name
        for name, value in (
            ("deliver_after", deliver_after),
            ("deliver_at", deliver_at),
            ("delay_level", delay_level),
        )
        if value is not None
    ]
    if len(given) > 1:
        raise BadRequest(f"{' and '.join(given)} are given", hint="choose one of them")
    if deliver_after is not None:
        return {Prop.TIMER_DELAY_MS: str(millis(deliver_after, "deliver_after", zero=True))}
    if deliver_at is not None:
        return {Prop.TIMER_DELIVER_MS: str(moment_ms(deliver_at, "deliver_at"))}
    if delay_level is not None:
        if type(delay_level) is not int or delay_level < 1:
            raise BadRequest(
                f"delay_level is {delay_level!r}", hint="pass a whole number from 1, or use deliver_after"
            )
        return {Prop.DELAY: str(delay_level)}
    return {}


def property_text(
    tag: str | None,
    keys: str | Sequence[str] | None,
    properties: Mapping[str, str] | None,
    order_key: OrderKey | None = None,
    system: Mapping[str, str] | None = None,
) -> str:
    """Everything but the unique id as it goes over the wire, each pair after a separator; "" for nothing."""
    pairs: list[str] = []
    if properties:
        pairs += [_user_pair(name, value) for name, value in properties.items()]
    if tag is not None:
        pairs.append(_tag_pair(tag))
    if keys:
        pairs.append(f"{Prop.KEYS}{NAME_END}{' '.join(_key_list(keys))}")
    if order_key is not None:
        pairs.append(f"{Prop.SHARDING_KEY}{NAME_END}{_order_key(order_key)}")
    if system:
        pairs += [f"{name}{NAME_END}{value}" for name, value in system.items()]
    if not pairs:
        return ""
    text = PAIR_END + PAIR_END.join(pairs)
    if len(text) > _MAX_TEXT // 4 and len(text.encode("utf-8", "replace")) > _MAX_TEXT:
        raise BadRequest(
            f"tag, keys and properties take more than {_MAX_TEXT:,} bytes", hint="move data into the body"
        )
    return text


def json_inside(text: str) -> bytes:
    """A text as it stands between the quotes of a JSON string."""
    if not text:
        return b""
    try:
        return _to_json(text)[1:-1]
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"a tag, key or property is not valid Unicode: {error}", hint="remove lone surrogates"
        ) from error


@lru_cache(2048)
def _tag_pair(tag: str) -> str:
    if not isinstance(tag, str):
        raise BadRequest(f"the tag is {type(tag).__name__}, not text", hint='pass text: tag="paid"')
    if not tag.strip() or "|" in tag or NAME_END in tag or PAIR_END in tag:
        raise BadRequest(
            f"{tag!r} cannot be a tag", hint="use one word without '|', which separates tags in subscriptions"
        )
    return f"{Prop.TAGS}{NAME_END}{tag}"


def _key_list(keys: str | Sequence[str]) -> Sequence[str]:
    words = (keys,) if isinstance(keys, str) else keys
    for key in words:
        if not isinstance(key, str):
            raise BadRequest(
                f"a key is {type(key).__name__}, not text", hint="pass texts: keys=[str(order_id)]"
            )
        if key.split() != [key] or NAME_END in key or PAIR_END in key:
            raise BadRequest(
                f"{key!r} cannot be a key", hint="keys are separated by blanks, so none may contain one"
            )
    return words


def _order_key(order_key: OrderKey) -> str:
    text = str(order_key)
    if type(order_key) is int or (isinstance(order_key, str) and text):
        if NAME_END in text or PAIR_END in text:
            raise BadRequest("order_key contains a separator byte (0x01 or 0x02)", hint="remove it")
        return text
    raise BadRequest(
        f"order_key is {order_key!r}", hint="pass a text or a whole number: equal keys go to one queue"
    )


def _user_pair(name: Any, value: Any) -> str:
    if not isinstance(name, str) or not isinstance(value, str):
        raise BadRequest(
            f"property {name!r} is {type(value).__name__}, not text",
            hint="properties are text: use str(value)",
        )
    if name in RESERVED_NAMES:
        raise BadRequest(f"property '{name}' is reserved", hint="use the option made for it, or another name")
    if not name or not value:
        raise BadRequest(
            f"property '{name}' has an empty name or value", hint="empty properties cannot be stored"
        )
    if NAME_END in name or PAIR_END in name or PAIR_END in value or NAME_END in value:
        raise BadRequest(f"property '{name}' contains a separator byte (0x01 or 0x02)", hint="remove it")
    return f"{name}{NAME_END}{value}"
