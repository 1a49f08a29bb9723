"""How the broker is doing, what a slave copies of it, and cleaning on request."""

from __future__ import annotations

import asyncio
from typing import Final

from orbitmq.broker.admin.common import json_reply, refused
from orbitmq.broker.admin.context import Broker, Handler
from orbitmq.net.connection import Connection
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import VERSION, Command
from orbitmq.wire.headers import StatsDataHeader, parse

VERSION_TEXT: Final = "V4_9_7"

# Tools read the thread pools of the Java broker. Here one event loop serves all, and nothing waits in pools.
THREAD_POOLS: Final = {
    "sendThreadPoolQueueSize": "0",
    "sendThreadPoolQueueCapacity": "0",
    "sendThreadPoolQueueHeadWaitTimeMills": "0",
    "pullThreadPoolQueueSize": "0",
    "pullThreadPoolQueueCapacity": "0",
    "pullThreadPoolQueueHeadWaitTimeMills": "0",
    "queryThreadPoolQueueSize": "0",
    "queryThreadPoolQueueCapacity": "0",
    "queryThreadPoolQueueHeadWaitTimeMills": "0",
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "0",
    "pageCacheLockTimeMills": "0",
    "remainTransientStoreBufferNumbs": "0",
    "dispatchMaxBuffer": "0",
}
_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def runtime_info(broker: Broker, conn: Connection, cmd: Command) -> Command:
    return json_reply(cmd, {"table": dict(sorted(runtime_table(broker).items()))})


def runtime_table(broker: Broker) -> dict[str, str]:
    """All runtime keys; what the store itself tells wins, since it knows its parts best."""
    store = broker.store
    ratio = str(store.disk_ratio())
    own = {
        "brokerVersion": str(VERSION),
        "brokerVersionDesc": VERSION_TEXT,
        "commitLogDiskRatio": ratio,
        "commitLogMaxOffset": str(store.max_phys_offset),
        "commitLogMinOffset": str(store.min_phys_offset),
        "consumeQueueDiskRatio": ratio,
        "dispatchBehindBytes": str(store.dispatch_behind_bytes),
        "earliestMessageTimeStamp": str(store.earliest_ms()),
        "remainHowManyDataToFlush": bytes_text(store.flush_behind_bytes),
        "startAcceptSendRequestTimeStamp": str(broker.config.start_accept_send_request_time_stamp),
        # Not of the protocol: groups whose members subscribe differently lose messages without another sign.
        "subscriptionMismatchGroups": str(len(broker.clients.mismatched_groups())),
        "subscriptionMismatchTotal": str(broker.clients.mismatch_total),
        "subscriptionMismatchRefusedTotal": str(broker.clients.mismatch_refused_total),
    }
    disk = {f"commitLogDiskRatio_{store.settings.log_directory}": str(store.disk_ratio())}
    return {**THREAD_POOLS, **broker.stats.runtime(broker.clock()), **own, **disk}


def bytes_text(count: int) -> str:
    """A size as Java's tools print it: 512 B, 1.5 KiB."""
    power = (max(count, 1).bit_length() - 1) // 10
    return f"{count / 1024**power:.1f} {_BYTE_UNITS[power]}" if power else f"{count} B"


def stats_data(broker: Broker, conn: Connection, cmd: Command) -> Command:
    header = parse(StatsDataHeader, cmd.ext, cmd.code)
    data = broker.stats.view(header.stats_name, header.stats_key)
    if data is None:
        raise refused(
            f"The stats <{header.stats_name}> <{header.stats_key}> not exist: nothing was counted yet"
        )
    return json_reply(cmd, data)


def all_consumer_offsets(broker: Broker, conn: Connection, cmd: Command) -> Command:
    return json_reply(cmd, broker.offsets.to_json())


def all_delay_offsets(broker: Broker, conn: Connection, cmd: Command) -> Command:
    return json_reply(cmd, broker.delays.to_json())


def clean_consume_queues(broker: Broker, conn: Connection, cmd: Command) -> Command:
    """Queue files go that only point at deleted log files. Offsets stay: a queue never begins again at 0."""
    return cmd.reply(ext={"queueFiles": str(broker.store.cleaner.clean_queues())})


async def delete_expired_log(broker: Broker, conn: Connection, cmd: Command) -> Command:
    """Expired files go now instead of in the cleaning hour; younger ones stay."""
    ready = asyncio.Event()
    broker.store.when_cleanable(ready.set)
    await ready.wait()
    cleaned = broker.store.clean_expired(manual=True)
    return cmd.reply(
        ext={
            "logFiles": str(cleaned.log_files),
            "queueFiles": str(cleaned.queue_files),
            "indexFiles": str(cleaned.index_files),
            "minOffset": str(broker.store.min_phys_offset),
            "diskRatio": str(broker.store.disk_ratio()),
        }
    )


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.GET_BROKER_RUNTIME_INFO: runtime_info,
    RequestCode.VIEW_BROKER_STATS_DATA: stats_data,
    RequestCode.GET_ALL_CONSUMER_OFFSET: all_consumer_offsets,
    RequestCode.GET_ALL_DELAY_OFFSET: all_delay_offsets,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: clean_consume_queues,
    RequestCode.DELETE_EXPIRED_COMMITLOG: delete_expired_log,
}
