"""The handle by which a producer can take back a message that is not delivered yet (RocketMQ 5,
RECALL_MESSAGE).
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from orbitmq.wire.errors import WireError

_VERSION = "v1"


class RecallHandle(NamedTuple):
    topic: str
    broker_name: str
    deliver_ms: int
    msg_id: str

    def encode(self) -> str:
        text = f"{_VERSION} {self.topic} {self.broker_name} {self.deliver_ms} {self.msg_id}"
        return base64.urlsafe_b64encode(text.encode()).decode()


def decode_handle(handle: str) -> RecallHandle:
    """WireError when it is not one."""
    try:
        padded = handle + "=" * (-len(handle) % 4)
        words = base64.b64decode(padded.encode(), altchars=b"-_", validate=True).decode().split(" ")
    except (binascii.Error, ValueError) as error:
        raise WireError(f"the recall handle is invalid: {error}") from error
    if len(words) < 5 or words[0] != _VERSION:
        raise WireError("the recall handle is invalid: expected 'v1 topic broker time id' in base64url")
    topic, broker_name, deliver_ms, msg_id = words[1:5]
    if not deliver_ms.removeprefix("-").isdigit() or len(deliver_ms) > 19 or not msg_id:
        raise WireError(f"the recall handle is invalid: '{deliver_ms[:40]}' is no time in milliseconds")
    return RecallHandle(topic, broker_name, int(deliver_ms), msg_id)
