"""What the broker said about a stored message."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from orbitmq.wire.answer_json import Answer
from orbitmq.wire.codes import ResponseCode

# The message is stored under each of these; they differ in how safe it is.
SEND_STATUS: Final[dict[int, str]] = {
    ResponseCode.SUCCESS: "SEND_OK",
    ResponseCode.FLUSH_DISK_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    ResponseCode.SLAVE_NOT_AVAILABLE: "SLAVE_NOT_AVAILABLE",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
}
_DURABLE: Final[dict[int, str]] = {
    ResponseCode.SUCCESS: "stored as safely as the broker's settings say",
    ResponseCode.FLUSH_DISK_TIMEOUT: "stored in the broker's memory; its disk had not confirmed in time",
    ResponseCode.SLAVE_NOT_AVAILABLE: "stored on the master alone; no slave was there to take a copy",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "stored on the master; its slave had not confirmed in time",
}


class Place(NamedTuple):
    """Where a message went."""

    topic: str
    broker: str
    queue_id: int


class IdRun(NamedTuple):
    """The unique ids of a batch: one text and consecutive numbers behind it."""

    stamp: str
    first: int

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        return f"{self.stamp}{self.first + index:04X}"


class Receipt(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Proof that a message is stored. Cheap to make: what nobody asks for is not computed."""

    _answer: Answer
    _place: Place
    _ids: str | IdRun
    _index: int = 0

    @property
    def topic(self) -> str:
        return self._place.topic

    @property
    def broker(self) -> str:
        return self._place.broker

    @property
    def queue_id(self) -> int:
        said = self._answer.extFields.queueId
        return said if said >= 0 else self._place.queue_id

    @property
    def queue_offset(self) -> int:
        """The message's number in its queue. A delayed or prepared one counts in the queue where it waits."""
        return self._answer.extFields.queueOffset + self._index

    @property
    def msg_id(self) -> str:
        """The id made by the producer, the same over all retries."""
        ids = self._ids
        return ids if type(ids) is str else str(ids[self._index])

    @property
    def offset_msg_id(self) -> str:
        """The id made by the broker: its address and the place in its log."""
        text = self._answer.extFields.msgId
        return text if type(self._ids) is str else text.split(",")[self._index]

    @property
    def status(self) -> str:
        """SEND_OK, FLUSH_DISK_TIMEOUT, SLAVE_NOT_AVAILABLE or FLUSH_SLAVE_TIMEOUT: stored in every case."""
        return SEND_STATUS[self._answer.code]

    @property
    def ok(self) -> bool:
        """Stored as safely as the broker promises."""
        return self._answer.code == 0

    @property
    def durable(self) -> str:
        """The durability that was reached, in words."""
        return _DURABLE[self._answer.code]

    @property
    def recall_handle(self) -> str | None:
        """By which a scheduled message can be cancelled; None when it is not one."""
        return self._answer.extFields.recallHandle

    def __repr__(self) -> str:
        return (
            f"<Receipt {self.status} {self.msg_id} in {self.topic} "
            f"{self.broker}:{self.queue_id} at {self.queue_offset}>"
        )
