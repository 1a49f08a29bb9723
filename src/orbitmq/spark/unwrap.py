"""Inner batches: one record that holds several messages, as newer brokers keep them for topics of the batch type.

They are written out as the single records that any other topic would have, so that nothing else needs to know them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from orbitmq.spark.spans import as_bytes, at
from orbitmq.wire.batch import iter_batch
from orbitmq.wire.codes import SysFlag
from orbitmq.wire.message import MESSAGE_MAGIC, MESSAGE_MAGIC_V2, Message, decode_record, encode_record

if TYPE_CHECKING:
    import numpy.typing as npt

INNER_BATCH_FLAGS: Final = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
_KEPT_FLAGS: Final = ~(INNER_BATCH_FLAGS | SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
_BASE: Final = "INNER_BASE"


def unwrapped(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], inner: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """A page with every inner message as a record of its own, and where these begin."""
    pieces: list[bytes] = []
    for start, is_batch in zip(starts.tolist(), inner, strict=True):
        whole = data[start : start + int(at(data, ">i4")[start])].tobytes()
        pieces += single_records(decode_record(whole, check_crc=False)) if is_batch else [whole]
    positions = np.zeros(len(pieces) + 1, dtype=np.int64)
    np.cumsum([len(piece) for piece in pieces], out=positions[1:])
    return as_bytes(b"".join(pieces)), positions[:-1]


def single_records(batch: Message) -> list[bytes]:
    """The messages of an inner batch; its properties give the queue offset of the first."""
    base = int(batch.properties.get(_BASE) or batch.queue_offset)
    long_topic = len(batch.topic.encode()) > 127
    return [
        encode_record(
            topic=batch.topic,
            body=body,
            properties=properties,
            queue_id=batch.queue_id,
            flag=flag,
            queue_offset=base + number,
            physical_offset=batch.physical_offset,
            sys_flag=batch.sys_flag & _KEPT_FLAGS,
            born_ms=batch.born_ms,
            born_host=batch.born_host_bytes,
            store_ms=batch.store_ms,
            store_host=batch.store_host_bytes,
            reconsume_times=batch.reconsume_times,
            prepared_offset=batch.prepared_offset,
            magic=MESSAGE_MAGIC_V2 if long_topic else MESSAGE_MAGIC,
        )
        for number, (flag, body, properties) in enumerate(iter_batch(batch.decoded_body()))
    ]
