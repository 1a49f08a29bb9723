"""Which messages are delivered later, and when: what the properties of a draft ask for."""

from __future__ import annotations

import re
from typing import Final

from orbitmq.broker.send import Draft
from orbitmq.net.errors import RequestError
from orbitmq.wire import topics as names
from orbitmq.wire.codes import ResponseCode, SysFlag
from orbitmq.wire.properties import Prop

TIMER_PROPERTIES: Final = (Prop.TIMER_DELAY_SEC, Prop.TIMER_DELAY_MS, Prop.TIMER_DELIVER_MS)
_NUMBER = re.compile(r"[+-]?[0-9]{1,40}").fullmatch
_QUEUED: Final = (SysFlag.TX_NONE, SysFlag.TX_COMMIT)
_INTERNAL: Final = frozenset({names.HALF_TOPIC, names.SCHEDULE_TOPIC, names.TIMER_TOPIC})


def divert(draft: Draft, now_ms: int, levels_ms: tuple[int, ...], max_delay_ms: int) -> int | None:
    """Sends a draft that asks for it to the schedule or timer topic; returns its delivery time, None for all
    others.
    """
    if draft.topic in _INTERNAL or draft.sys_flag & SysFlag.TX_MASK not in _QUEUED:
        return None
    properties = draft.properties
    level = delay_level(properties.get(Prop.DELAY), len(levels_ms))
    if level > 0:
        return _by_level(draft, level, now_ms, levels_ms)
    # A message that was delivered on time and is stored again, by a retry or a copy, keeps its properties.
    if Prop.TIMER_OUT_MS in properties:
        return None
    due_ms = delivery_time(properties, now_ms, max_delay_ms)
    if due_ms is None:
        return None
    if due_ms <= now_ms:
        if Prop.TIMER_DEL_UNIQKEY in properties:
            raise _illegal("the delivery time of the message to cancel has passed")
        return None
    _move(draft, names.TIMER_TOPIC, 0)
    properties[Prop.TIMER_OUT_MS] = str(due_ms)
    return due_ms


def _by_level(draft: Draft, level: int, now_ms: int, levels_ms: tuple[int, ...]) -> int:
    for name in TIMER_PROPERTIES:
        draft.properties.pop(name, None)
    _move(draft, names.SCHEDULE_TOPIC, level - 1)
    draft.properties[Prop.DELAY] = str(level)
    draft.delay_ms = levels_ms[level - 1]
    return now_ms + draft.delay_ms


def _move(draft: Draft, topic: str, queue_id: int) -> None:
    draft.properties[Prop.REAL_TOPIC] = draft.topic
    draft.properties[Prop.REAL_QUEUE_ID] = str(draft.queue_id)
    draft.topic = topic
    draft.queue_id = queue_id


def delay_level(text: str | None, levels: int) -> int:
    """The level, at most the highest there is; 0: not delayed by a level."""
    if text is None:
        return 0
    level = _number(text)
    if level is None or level < 0:
        raise _illegal(f"the delay level DELAY={text[:40]!r} is not known; give 1 to {levels}, or 0 for none")
    return min(level, levels)


def delivery_time(properties: dict[str, str], now_ms: int, max_delay_ms: int) -> int | None:
    """The moment that TIMER_* properties name, in the past or within the limit; None when there are none."""
    for name in TIMER_PROPERTIES:
        text = properties.get(name)
        if text is None:
            continue
        value = _number(text)
        if value is None:
            raise _illegal(f"{name}={text[:40]!r} is not a whole number of {_unit(name)}")
        due_ms = value * 1000 if name == Prop.TIMER_DELAY_SEC else value
        if name != Prop.TIMER_DELIVER_MS:
            due_ms += now_ms
        if due_ms - now_ms > max_delay_ms:
            raise _illegal(
                f"{name}={text[:40]} lies too far ahead: a delivery time may be at most "
                f"{max_delay_ms // 1000} s ({max_delay_ms / 86_400_000:g} days, timerMaxDelaySec) from now"
            )
        return due_ms
    return None


def _unit(name: str) -> str:
    return {Prop.TIMER_DELAY_SEC: "seconds", Prop.TIMER_DELAY_MS: "milliseconds"}.get(
        name, "milliseconds since 1970"
    )


def _number(text: str) -> int | None:
    return int(text) if _NUMBER(text) else None


def _illegal(why: str) -> RequestError:
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, why)
