"""Which messages are the same one: the token under which a handled message is remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from orbitmq.client.dedup import Guarded
from orbitmq.client.errors import BadRequest

MAX_TOKEN_CHARS: Final = 1024


class Name(NamedTuple):
    """A token under the name of those it was handled for: two groups handle the same message, once each."""

    scope: str
    token: str


def token_of(msg: Guarded) -> str:
    """Topic, tag and keys; without keys the message id, which a producer's own retries keep.

    The tag belongs to it because keys usually name a thing (`order-42`) to which several things happen
    (`created`, `paid`). The parts are separated by a character that none of them may contain, and no key is
    empty, so the two forms never meet.
    """
    if msg.keys:
        return "\n".join((msg.topic, msg.tag or "", *msg.keys))
    return "\n".join((msg.topic, "", "", msg.msg_id))


def name_of(msg: Any, scope: str, choose: Callable[[Any], str] | None) -> Name:
    """The name to remember `msg` under; `choose` is the user's own function."""
    token: Any = token_of(msg) if choose is None else choose(msg)
    if not isinstance(token, str) or not token or "\0" in token:
        raise BadRequest(
            f"token= gave {token!r} for message {msg.msg_id}",
            hint="return a text that is not empty, without NUL, and the same for every copy of the message",
        )
    if len(token) > MAX_TOKEN_CHARS:
        raise BadRequest(
            f"the token of message {msg.msg_id} has {len(token)} characters; {MAX_TOKEN_CHARS} is the limit",
            hint="choose token= as a function that gives something shorter, such as a digest of the keys",
        )
    return Name(scope, token)
