"""When a send that failed is tried again, and where.

| kind     | tries | where           | after                                             |
|----------|-------|-----------------|---------------------------------------------------|
| AWAITED  | 1 + 2 | another broker  | no answer, or an answer of the list below         |
| POSTED   | 1 + 2 | the same broker | no answer, or a broker that is not the place      |
| ORDERED  | 1     |                 | a retry could overtake the next message           |
| ONEWAY   | 1     |                 | nobody hears of the failure                       |

A broker that is not the place (gone, or master no longer) has certainly not taken the message. Such a try does not
count: when all have failed like that, the route is looked at again and again until the time is over, because another
master may be on its way. A missing permission counts all the same, since it mostly stays missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from orbitmq.client.errors import NotFound, OrbitMQError, Unreachable
from orbitmq.wire.codes import ResponseCode

RETRIES: Final = 2

# Answers after which another broker may still take the message. Java's list, plus SYSTEM_BUSY: a broker that
# sheds load says so before it stores anything.
RETRY_ELSEWHERE_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)


# Answers of a broker that is alive and takes no messages (any more): a slave, a master that lost its place.
NOT_THE_PLACE_CODES: Final = frozenset({ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.NO_PERMISSION})


class SendKind(Enum):
    AWAITED = "awaited"
    POSTED = "posted"
    ORDERED = "ordered"
    ONEWAY = "oneway"


@dataclass(frozen=True, slots=True)
class RetryRules:
    retries: int = RETRIES
    retry_not_stored: bool = False
    """Try another broker when a message is stored less safely than the broker's settings promise."""

    def tries(self, kind: SendKind) -> int:
        return 1 + self.retries if kind in (SendKind.AWAITED, SendKind.POSTED) else 1

    def elsewhere(self, kind: SendKind) -> bool:
        """Whether the next try goes to another broker."""
        return kind is SendKind.AWAITED

    def worth_another_try(self, kind: SendKind, error: OrbitMQError) -> bool:
        if isinstance(error, Unreachable) or not_the_place(error):
            return True
        return kind is SendKind.AWAITED and error.code in RETRY_ELSEWHERE_CODES


def not_the_place(error: OrbitMQError) -> bool:
    """Nothing was stored for certain, and the message may have a place elsewhere, now or soon."""
    if isinstance(error, Unreachable):
        return not error.maybe_processed
    return error.code in NOT_THE_PLACE_CODES or (isinstance(error, NotFound) and error.retryable)


def counts_as_try(error: OrbitMQError) -> bool:
    return error.code == ResponseCode.NO_PERMISSION or not not_the_place(error)


def share_of_time(left_s: float, tries_left: int, *, alone: bool) -> float:
    """How long one try may take: with nobody else to ask, all that is left.

    Otherwise a broker that is frozen, not dead, would eat the time in which another one could have answered.
    """
    return left_s if alone or tries_left <= 1 else left_s / tries_left
