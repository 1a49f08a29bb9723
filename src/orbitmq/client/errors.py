"""One small tree of errors: what happened, the broker's code, whether trying again helps, and what to do.

`str(error)` is the cause in one line without the advice; `error.hint` is the advice. Both are written for
the person who has to act, so that a program can show them as they are.
"""

from __future__ import annotations

from typing import Final

from orbitmq.net.errors import ConnectFailed, RemotingError, SendRefused
from orbitmq.wire.codes import ResponseCode, request_name, response_name

# The request may succeed later, or at once on another broker, without anybody changing anything.
RETRYABLE_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
    }
)

NOT_FOUND_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.NO_MESSAGE,
    }
)

_HINTS: Final[dict[int, str]] = {
    ResponseCode.SYSTEM_BUSY: "the broker sheds load; try again in a moment or add a broker",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "check the address: this server is older or of another kind",
    ResponseCode.MESSAGE_ILLEGAL: "correct what the broker names: body, properties, topic or delivery time",
    ResponseCode.SERVICE_NOT_AVAILABLE: "a slave, stopping, or out of disk: see `orbitmq cluster list`",
    ResponseCode.NO_PERMISSION: "check the permissions of topic, group and broker: `orbitmq topic route`",
    ResponseCode.TOPIC_NOT_EXIST: "check the name with `orbitmq topic list`, or use `orbitmq topic create`",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "correct the filter: tags are `A || B`, and `*` takes everything",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "see `orbitmq group list`, or use `orbitmq group create`",
    ResponseCode.CONSUMER_NOT_ONLINE: "start a member of the group first",
    ResponseCode.FLOW_CONTROL: "the broker limits this client; try again more slowly",
}


class OrbitMQError(Exception):
    """Base of everything this client raises on purpose."""

    retryable: bool = False

    def __init__(
        self, what: str, *, hint: str = "", code: int | None = None, retryable: bool | None = None
    ) -> None:
        super().__init__(what)
        self.code = code
        self.hint = hint
        if retryable is not None:
            self.retryable = retryable


class Unreachable(OrbitMQError):
    """No answer came. `maybe_processed` tells whether the request may have taken effect all the same."""

    retryable = True

    def __init__(self, what: str, *, hint: str = "", maybe_processed: bool = False) -> None:
        super().__init__(what, hint=hint)
        self.maybe_processed = maybe_processed


class NotFound(OrbitMQError):
    """The topic, group or message asked for does not exist there."""


class Refused(OrbitMQError):
    """A server answered, and the answer was no."""


class BadRequest(OrbitMQError):
    """The request was refused before it was sent, because it could never succeed."""


class Closed(OrbitMQError):
    """The client, or the part of it that was used, has been closed."""


def from_remoting(error: RemotingError) -> OrbitMQError:
    """The error of this tree for a request that got no answer."""
    if isinstance(error, SendRefused):
        return BadRequest(error.what, hint=error.hint)
    return Unreachable(error.what, hint=error.hint, maybe_processed=not isinstance(error, ConnectFailed))


def from_response(request_code: int, code: int, remark: str | None, addr: str) -> OrbitMQError:
    """The error of this tree for an answer with a code other than success."""
    text = f"{request_name(request_code)} at {addr} failed with {response_name(code)} ({code})"
    reason = " ".join((remark or "").split())
    if reason:
        text += f": {reason}"
    kind = NotFound if code in NOT_FOUND_CODES else Refused
    return kind(text, hint=_HINTS.get(code, ""), code=code, retryable=code in RETRYABLE_CODES)
