"""Store directories for tests that break them: made small, so that every kind of file has several of its kind."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from orbitmq.store.disk import Disk
from orbitmq.store.flush import Runner
from orbitmq.store.inner_message import InnerMessage
from orbitmq.store.message_store import MessageStore
from orbitmq.store.settings import StoreSettings
from orbitmq.wire.message import Message, decode_records
from orbitmq.wire.properties import encode_properties

T0 = 1_700_000_000_000
GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden" / "store"
Queues = dict[tuple[str, int], list[Message]]


class Clock:
    """Goes on by a millisecond whenever somebody looks."""

    def __init__(self, now_ms: int = T0) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        self.now_ms += 1
        return self.now_ms


def small_settings(root: Path, *, sync_flush: bool = False) -> StoreSettings:
    return StoreSettings(
        str(root),
        commit_log_file_bytes=32 * 1024,
        consume_queue_file_bytes=20 * 20,
        index_slots=40,
        index_entries=200,
        sync_flush=sync_flush,
        queue_sync_interval_ms=100,
    )


def golden_settings(root: Path) -> StoreSettings:
    return StoreSettings(
        str(root),
        commit_log_file_bytes=1 << 20,
        consume_queue_file_bytes=100 * 20,
        index_slots=500,
        index_entries=400,
    )


def open_small(
    root: Path,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    sync_flush: bool = False,
    runner: Runner | None = None,
) -> MessageStore:
    settings = small_settings(root, sync_flush=sync_flush)
    store = MessageStore(settings, disk or Disk(), clock or Clock(), runner)
    store.open()
    return store


def fill(store: MessageStore, count: int, seed: int = 1) -> None:
    """Messages of all lengths in several queues; ticks in between, as a running broker has them."""
    random = Random(seed)
    for number in range(count):
        topic, queue_id = random.choice((("Alpha", 0), ("Alpha", 1), ("Alpha", 2), ("Beta", 0)))
        properties = {"UNIQ_KEY": f"{seed:08X}{number:024X}", "KEYS": f"k{number} shared", "n": str(number)}
        if random.random() < 0.5:
            properties["TAGS"] = random.choice("AB")
        body = random.randbytes(random.choice((0, 1, 10, 100, 400, 3000)))
        text = encode_properties(properties)
        store.put(InnerMessage(topic, queue_id, body, text, born_ms=T0).index_properties())
        if not number % 50:
            store.tick()
    store.tick()


def make_clean(root: Path, count: int = 300) -> None:
    """A store after an orderly stop."""
    store = open_small(root)
    # A queue that is idle for long: recovery has no reason to read its records again.
    for number in range(25):
        store.put(
            InnerMessage("Idle", 0, b"idle %d" % number, b"UNIQ_KEY\x01idle%d" % number).index_properties()
        )
    fill(store, count)
    store.close()


def make_crashed(root: Path, count: int = 300) -> None:
    """A store whose broker was killed: the files as they were while it ran."""
    running = root.with_name(root.name + "-running")
    make_clean(running, count)
    store = open_small(running, clock=Clock(T0 + 1_000_000))
    fill(store, 100, seed=2)
    store.durability.kick()
    fill(store, 60, seed=3)
    store.durability.kick()  # what was acknowledged is on the device
    shutil.copytree(running, root)
    store.close()
    shutil.rmtree(running)


def read_all(store: MessageStore) -> Queues:
    """Every queue from its first to its last message, as pulls would get them."""
    found: Queues = {}
    for queue in store.all_queues():
        messages = found[queue.topic, queue.queue_id] = []
        offset = queue.min_offset
        while offset < queue.max_offset:
            result = store.reader.read(queue, offset, 32)
            assert result.next_offset > offset, f"{queue.topic} {queue.queue_id} does not get past {offset}"
            messages += decode_records(b"".join(result.chunks), check_crc=False)
            offset = result.next_offset
    return found


@contextmanager
def told() -> Iterator[list[str]]:
    """What the store says to its log meanwhile, from warnings up."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("orbitmq.store")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
