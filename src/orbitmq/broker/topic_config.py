"""What a broker knows about one topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orbitmq.wire.codes import Perm


class TopicConfig:
    """Queue numbers and permissions of one topic.

    Read and write queue numbers differ while a topic is being shrunk: producers stop writing to the upper
    queues first, and consumers keep reading them until they are empty.
    """

    __slots__ = (
        "attributes",
        "name",
        "order",
        "perm",
        "read_queue_nums",
        "topic_filter_type",
        "topic_sys_flag",
        "write_queue_nums",
    )

    def __init__(
        self,
        name: str,
        read_queue_nums: int = 8,
        write_queue_nums: int = 8,
        perm: int = Perm.READ | Perm.WRITE,
        *,
        topic_filter_type: str = "SINGLE_TAG",
        topic_sys_flag: int = 0,
        order: bool = False,
        attributes: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.read_queue_nums = read_queue_nums
        self.write_queue_nums = write_queue_nums
        self.perm = perm
        self.topic_filter_type = topic_filter_type
        self.topic_sys_flag = topic_sys_flag
        self.order = order
        self.attributes = attributes if attributes is not None else {}

    @property
    def readable(self) -> bool:
        return self.perm & Perm.READ != 0

    @property
    def writable(self) -> bool:
        return self.perm & Perm.WRITE != 0

    @property
    def inheritable(self) -> bool:
        """Whether new topics may be made after its pattern when a producer first sends to them."""
        return self.perm & Perm.INHERIT != 0

    @property
    def queue_count(self) -> int:
        """How many queues can hold messages: those still read and those already written."""
        return max(self.read_queue_nums, self.write_queue_nums)

    def to_json(self) -> dict[str, object]:
        data: dict[str, object] = {
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }
        # Only 5.x knows attributes; a 4.9 file must stay as a 4.9 broker writes it.
        return {"attributes": self.attributes, **data} if self.attributes else data

    @classmethod
    def from_json(cls, data: Mapping[str, Any], name: str | None = None) -> TopicConfig:
        topic = name if name is not None else data.get("topicName")
        if not isinstance(topic, str) or not topic:
            raise ValueError(f"a topic without topicName: {dict(data)!r}")
        attributes = data.get("attributes") or {}
        return cls(
            topic,
            int(data.get("readQueueNums", 16)),
            int(data.get("writeQueueNums", 16)),
            int(data.get("perm", Perm.READ | Perm.WRITE)),
            topic_filter_type=str(data.get("topicFilterType") or "SINGLE_TAG"),
            topic_sys_flag=int(data.get("topicSysFlag") or 0),
            order=bool(data.get("order", False)),
            attributes={str(key): str(value) for key, value in attributes.items()},
        )

    def copy(self) -> TopicConfig:
        return TopicConfig.from_json(self.to_json())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicConfig):
            return NotImplemented
        return self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        queues = f"read={self.read_queue_nums}, write={self.write_queue_nums}"
        return f"TopicConfig({self.name!r}, {queues}, perm={self.perm})"
