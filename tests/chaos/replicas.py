"""Compares the stores of a group's replicas after a run: the same log, whole queues, every acknowledged message."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from orbitmq.store.disk import Disk
from orbitmq.store.log_scan import scan_segment
from orbitmq.store.store_files import COMMIT_LOG, StoreFiles, segment_path, unmap
from orbitmq.store.verify import verify_store
from orbitmq.wire.message import decode_record
from tests.chaos.history import Answer, History
from tests.chaos.special import key_in

SHOWN = 5
LOG_FILE_BYTES = 1 << 20
Places = dict[tuple[str, int], dict[int, str]]
"""Per topic and queue: which key is at which offset."""


def compare(history: History, stores: Mapping[str, Path], topic: str) -> list[str]:
    """What is wrong with the stores of one group; they must not be in use. Empty when nothing is."""
    problems = []
    contents: dict[str, Places] = {}
    placed = [ack for ack in history.acknowledged if ack.queue is not None]
    waited = {ack.key for ack in history.acknowledged if ack.queue is None}
    for name, directory in stores.items():
        report = verify_store(directory)
        problems += [f"{name}: {finding}" for finding in report.of("error")][:SHOWN]
        for queue in report.queues:
            if queue.records != queue.max_offset - queue.min_offset:
                problems.append(
                    f"{name}: queue {queue.queue_id} of {queue.topic} has {queue.records} units "
                    f"between {queue.min_offset} and {queue.max_offset}"
                )
        contents[name] = stored_keys(directory, topic)
        stored = {key for queue in contents[name].values() for key in queue.values()}
        problems += [f"{name}: {text}" for text in _missing(placed, contents[name])]
        problems += [f"{name}: {text}" for text in _some(sorted(waited - stored), "messages never came due")]
        problems += [f"{name}: {text}" for text in _forgotten(history, directory)]
    problems += _different_logs(stores)
    # The logs are equal, or that has been told: one of them is enough.
    one = next(iter(contents.values()))
    return problems + _twice(one, {attempt.key for attempt in history.attempts if attempt.resends})


def stored_keys(directory: Path, topic: str) -> Places:
    places: Places = defaultdict(dict)
    files = StoreFiles(Disk(), str(directory))
    try:
        for base in files.bases(COMMIT_LOG):
            buf = files.map(segment_path(COMMIT_LOG, base))
            try:
                for record in scan_segment(buf, base):
                    if record.topic == topic:
                        body = decode_record(buf, record.offset - base).body
                        places[topic, record.queue_id][record.queue_offset] = key_in(body)
            finally:
                unmap(buf)
    finally:
        files.close()
    return places


def _missing(acks: list[Answer], places: Places) -> list[str]:
    missing = []
    for ack in acks:
        assert ack.queue is not None
        found = places.get((ack.queue.topic, ack.queue.number), {}).get(ack.offset)
        if found != ack.key:
            missing.append(f"{ack.key}, acknowledged as {ack.queue} offset {ack.offset}: there is {found}")
    return _some(missing, "acknowledged messages are not where they should be")


def _forgotten(history: History, directory: Path) -> list[str]:
    """Topics and groups that are not in the tables, though a tool was told that they are there."""
    problems = []
    for kind, file, table in (
        ("topic", "topics.json", "topicConfigTable"),
        ("group", "subscriptionGroup.json", "subscriptionGroupTable"),
    ):
        known = json.loads((directory / "config" / file).read_text("utf-8"))[table]
        names = [made.name for made in history.made if made.kind == kind and made.name not in known]
        problems += _some(names, f"{kind}s are forgotten")
    return problems


def _twice(places: Places, resends: set[str]) -> list[str]:
    seen: dict[str, int] = defaultdict(int)
    for queue in places.values():
        for key in queue.values():
            seen[key] += 1
    twice = [f"{key} {count} times" for key, count in seen.items() if count > 1 and key not in resends]
    return _some(twice, "messages are stored more than once")


def _different_logs(stores: Mapping[str, Path]) -> list[str]:
    """As far as both go: what the last master wrote when the others had stopped is on nobody's account."""
    logs = {name: dict(_log_files(directory)) for name, directory in stores.items()}
    problems = []
    (first, reference), *others = logs.items()
    for name, files in others:
        for base in sorted(reference.keys() & files.keys()):
            at = _first_difference(reference[base], files[base])
            if at < min(len(reference[base]), len(files[base])):
                problems.append(f"the logs of {first} and {name} differ from {base + at} on")
                break
        if abs(max(reference) - max(files)) > LOG_FILE_BYTES:
            problems.append(f"the logs of {first} and {name} end far apart: {max(reference)}, {max(files)}")
    return problems


def _log_files(directory: Path) -> Iterator[tuple[int, bytes]]:
    for path in sorted((directory / "commitlog").iterdir()):
        content = path.read_bytes().rstrip(b"\0")
        if content and path.name.isdecimal():  # a file made ahead of its first message says nothing
            yield int(path.name), content


def _first_difference(one: bytes, other: bytes) -> int:
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(at for at in range(shorter) if one[at] != other[at])


def _some(cases: list[str], what: str) -> list[str]:
    if not cases:
        return []
    return [f"{len(cases)} {what}: " + "; ".join(cases[:SHOWN])]
