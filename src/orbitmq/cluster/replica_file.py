"""Who a store directory is: a name made once, and the broker group that it belongs to."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from orbitmq.store.disk import Disk
from orbitmq.store.errors import StoreError

FILE_NAME = "replica.json"


class Replica(msgspec.Struct, frozen=True):
    token: str
    cluster: str
    broker: str
    number: int = 0
    """What the controller calls it; 0 as long as none has."""


def own_replica(disk: Disk, path: str, cluster: str, broker: str, new_token: Callable[[], str]) -> Replica:
    """What the file says, or a new one; StoreError when the store is another group's."""
    if not disk.exists(path):
        replica = Replica(new_token(), cluster, broker)
        disk.write_atomic(path, msgspec.json.encode(replica), backup=False)
        return replica
    try:
        replica = msgspec.json.decode(disk.read_file(path), type=Replica)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(
            f"{path} is damaged ({error}): which replica this store is cannot be told; restore the file, or empty "
            "the directory so that this broker copies everything anew"
        ) from error
    if (replica.cluster, replica.broker) != (cluster, broker):
        raise StoreError(
            f"this store belongs to broker {replica.broker} of cluster {replica.cluster}, and the settings say "
            f"{broker} of {cluster}; correct brokerName and brokerClusterName, or give it another directory"
        )
    return replica


def note_number(disk: Disk, path: str, replica: Replica, number: int) -> None:
    """The next start need not ask before it opens the store."""
    disk.write_atomic(
        path, msgspec.json.encode(msgspec.structs.replace(replica, number=number)), backup=False
    )
