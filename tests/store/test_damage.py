"""Bytes of a store are cut off, flipped or zeroed, anywhere. It opens or says why not; nothing sound is lost.

A record's head has no checksum in this format, so a message whose own bytes were hit may come back with a wrong field.
What must never happen: a sound message missing without a word, a message that nobody wrote, a queue offset
given twice, or a store that opens once and not again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orbitmq.store import recovery
from orbitmq.store.disk import Disk
from orbitmq.store.errors import StoreError
from orbitmq.store.inner_message import InnerMessage
from orbitmq.store.mark import RecoveryMark
from orbitmq.store.message_store import MessageStore
from orbitmq.store.settings import StoreSettings
from orbitmq.store.verify import verify_store
from orbitmq.wire.message import Message
from tests.support.stores import (
    GOLDEN,
    T0,
    Clock,
    Queues,
    golden_settings,
    make_clean,
    make_crashed,
    read_all,
    small_settings,
    told,
)

# Each example opens a store twice and verifies it: a few hundred are for a longer look.
EXAMPLES = int(os.environ.get("ORBITMQ_DAMAGE_EXAMPLES", "25"))
KINDS = ("flip", "zero", "garbage", "truncate")


class Original:
    """A store as it should be, and how to open it."""

    def __init__(self, root: Path, settings_of: Callable[[Path], StoreSettings], *, clean: bool) -> None:
        self.root = root
        self.settings_of = settings_of
        self.clean = clean
        self.queues: Queues = {}
        self.files: list[str] = []
        self.safe_offset = -1

    def __repr__(self) -> str:
        return self.root.name

    def open(self, root: Path) -> MessageStore:
        store = MessageStore(self.settings_of(root), Disk(), Clock(T0 + 50_000_000_000))
        store.open()
        return store


@pytest.fixture(scope="module", autouse=True)
def _short_recheck() -> Iterator[None]:
    """These stores are small: read back as far as usual, all of them would be checked at every start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery, "RECHECK_BYTES", 40_000)
        yield


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Original]:
    base = tmp_path_factory.mktemp("stores")
    make_clean(base / "clean")
    make_crashed(base / "crashed")
    shutil.copytree(GOLDEN, base / "golden")
    found = {
        "clean": Original(base / "clean", small_settings, clean=True),
        "crashed": Original(base / "crashed", small_settings, clean=False),
        "golden": Original(base / "golden", golden_settings, clean=True),
    }
    for name, original in found.items():
        copy = base / f"{name}-read"
        shutil.copytree(original.root, copy)
        store = original.open(copy)
        original.queues = read_all(store)
        store.close()
        shutil.rmtree(copy)
        original.safe_offset = RecoveryMark.load(Disk(), str(original.root / "recovery.json")).safe_offset
        names = [
            path.relative_to(original.root).as_posix() for path in original.root.rglob("*") if path.is_file()
        ]
        original.files = sorted(n for n in names if not n.startswith("config/") and "lock" not in n)
    assert sum(map(len, found["golden"].queues.values())) >= 1430
    assert sum(map(len, found["clean"].queues.values())) == 325
    return found


@dataclass
class Hit:
    """Bytes that are not what they were."""

    file: str
    start: int
    end: int


def break_file(path: Path, kind: str, at: float, length: int, garbage: bytes) -> tuple[int, int] | None:
    """The range that changed, or None when nothing did."""
    before = path.read_bytes()
    if not before:
        return None
    used = max(len(before.rstrip(b"\0")), 1)
    # Mostly where something was written, now and then behind it.
    start = min(int(at * used * 1.1), len(before) - 1)
    if kind == "truncate":
        path.write_bytes(before[:start])
        return start, len(before)
    end = min(start + length, len(before))
    if kind == "flip":
        changed = bytes(byte ^ (1 << length % 8) for byte in before[start : start + 1])
    elif kind == "zero":
        changed = bytes(end - start)
    else:
        changed = (garbage * length)[: end - start]
    after = before[:start] + changed + before[start + len(changed) :]
    path.write_bytes(after)
    differing = [i for i in range(start, start + len(changed)) if before[i] != after[i]]
    return (differing[0], differing[-1] + 1) if differing else None


def was_hit(message: Message, hits: list[Hit], file_bytes: int) -> bool:
    base = message.physical_offset - message.physical_offset % file_bytes
    start = message.physical_offset - base
    name = f"commitlog/{base:020d}"
    return any(hit.file == name and hit.start < start + message.size and hit.end > start for hit in hits)


def unit_was_hit(message: Message, hits: list[Hit], file_bytes: int) -> bool:
    at = message.queue_offset * 20
    base = at - at % file_bytes
    name = f"consumequeue/{message.topic}/{message.queue_id}/{base:020d}"
    return any(hit.file == name and hit.start < at - base + 20 and hit.end > at - base for hit in hits)


parts = st.sampled_from(
    ["commitlog/"] * 4 + ["consumequeue/"] * 3 + ["index/", "checkpoint", "recovery.json", "flushed"]
)
places = st.tuples(
    parts,
    st.integers(0, 10**6),
    st.sampled_from(KINDS),
    st.floats(0, 1),
    st.sampled_from([1, 1, 2, 8, 20, 100, 5000]),
    st.binary(min_size=1, max_size=8),
)


@pytest.mark.parametrize("name", ["clean", "crashed", "golden"])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(damage=st.lists(places, min_size=1, max_size=3))
def test_whatever_is_damaged_nothing_sound_is_lost(
    originals: dict[str, Original], name: str, damage: list[tuple[str, int, str, float, int, bytes]]
) -> None:
    original = originals[name]
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "store"
        shutil.copytree(original.root, root)
        hits = []
        for part, number, kind, at, length, garbage in damage:
            files = [file for file in original.files if file.startswith(part)] or original.files
            file = files[number % len(files)]
            changed = break_file(root / file, kind, at, length, garbage)
            if changed is not None:
                hits.append(Hit(file, *changed))
        check_opening(original, root, hits)


def check_opening(original: Original, root: Path, hits: list[Hit]) -> None:
    verified = verify_store(root)
    with told() as lines:
        try:
            store = original.open(root)
        except StoreError as refusal:
            text = str(refusal)
            assert len(text) > 40 and ("/" in text or "offset" in text), f"not much of a report: {text}"
            assert hits, f"an undamaged store was refused: {text}"
            return
        with closing(store):
            found = read_all(store)
            check_contents(original, store.settings, hits, found, lines)
            check_offsets_go_on(original, store, hits)
            after = read_all(store)
    sizes = original.settings_of(root)
    lost = [m for m in everything(original.queues) if was_hit(m, hits, sizes.commit_log_file_bytes)]
    unreadable = {m.physical_offset for m in lost} - {m.physical_offset for m in everything(found)}
    if unreadable and original.clean:
        assert not verified.ok, f"verify finds nothing, but {sorted(unreadable)} cannot be read"
    # What it made of the damage must be sound itself: it opens again and has no less to say.
    with closing(original.open(root)) as again:
        reread = essences(read_all(again))
    for place, messages in essences(after).items():
        assert set(messages) <= set(reread[place]), f"{place}: messages are gone at the second start"


def everything(queues: Queues) -> list[Message]:
    return [message for messages in queues.values() for message in messages]


def essences(queues: Queues) -> dict[tuple[str, int], list[tuple[int, int, bytes]]]:
    return {
        place: [(m.queue_offset, m.physical_offset, m.body) for m in messages]
        for place, messages in queues.items()
        if messages
    }


def check_contents(
    original: Original, sizes: StoreSettings, hits: list[Hit], found: Queues, lines: list[str]
) -> None:
    wanted = {message.physical_offset: message for message in everything(original.queues)}
    seen: set[int] = set()
    for place, messages in found.items():
        for message in messages:
            source = wanted.get(message.physical_offset)
            assert source is not None, f"{place} holds a message that nobody wrote: {message}"
            assert message.physical_offset not in seen, f"{place}: {message.physical_offset} is there twice"
            seen.add(message.physical_offset)
            if not was_hit(source, hits, sizes.commit_log_file_bytes):
                assert message == source
                assert place == (source.topic, source.queue_id)
    for message in everything(original.queues):
        if message.physical_offset in seen or was_hit(message, hits, sizes.commit_log_file_bytes):
            continue
        told_so = f"{message.topic} queue {message.queue_id} offset {message.queue_offset} is left out"
        hit = unit_was_hit(message, hits, sizes.consume_queue_file_bytes)
        assert hit and any(told_so in line for line in lines), (
            f"{message.topic} {message.queue_id} {message.queue_offset} at {message.physical_offset} is missing, "
            f"unit hit: {hit}, told: {lines}"
        )


def check_offsets_go_on(original: Original, store: MessageStore, hits: list[Hit]) -> None:
    """New messages take new places, and can be read there."""
    file_bytes = store.settings.commit_log_file_bytes
    for (topic, queue_id), messages in original.queues.items():
        # After a crash, damage at the very end cannot be told from an unfinished write.
        kept = [
            m
            for m in messages
            if not was_hit(m, hits, file_bytes) or m.physical_offset < original.safe_offset
        ]
        put = store.put(InnerMessage(topic, queue_id, b"new", b"UNIQ_KEY\x01new").index_properties())
        if kept:
            assert put.queue_offset > kept[-1].queue_offset
        assert put.queue_offset <= messages[-1].queue_offset + 1 if messages else True
        result = store.reader.read(store.queue(topic, queue_id), put.queue_offset, 1)
        assert result.messages == 1
