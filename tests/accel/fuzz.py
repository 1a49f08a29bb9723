"""Mutated frames, records, units and columns for the accelerator: `python -m tests.accel.fuzz EXTENSION SECONDS SEED`.

Ends with 0 when nothing was wrong. A crash, or what a sanitizer finds, ends the process: hence a process of its own.
"""

from __future__ import annotations

import importlib.util
import socket
import sys
import time
from random import Random
from types import ModuleType
from typing import Any

from orbitmq.wire.message import encode_record
from tests.accel import direct

_INTERESTING = (
    0,
    1,
    2,
    0x16,
    0x20,
    0x22,
    0x2C,
    0x2D,
    0x30,
    0x39,
    0x3A,
    0x5C,
    0x75,
    0x7B,
    0x7D,
    0x7F,
    0x80,
    0xFF,
)
_LAST = (1 << 63) - 1
_BIG = (0, 1, -1, 20, 40, 100, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 62, _LAST, -(1 << 63), -(1 << 31))
_UNIT_BYTES = 20


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_accel", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Fuzzer:
    def __init__(self, module: ModuleType, seed: int) -> None:
        self._module = module
        self._random = Random(seed)
        self._topics = direct.topics_of(20, 5)
        self.calls = 0
        self.taken = 0

    def mutated(self, data: bytes) -> bytes:
        random = self._random
        out = bytearray(data)
        for _ in range(random.choice((0, 1, 1, 1, 2, 3, 8))):
            at = random.randrange(len(out) + 1)
            match random.randrange(7):
                case 0 if at < len(out):
                    out[at] ^= 1 << random.randrange(8)
                case 1 if at < len(out):
                    out[at] = random.choice(_INTERESTING)
                case 2:
                    del out[at : at + random.choice((1, 2, 5, 40))]
                case 3:
                    out[at:at] = bytes(random.choice(_INTERESTING) for _ in range(random.choice((1, 2, 9))))
                case 4:
                    out[at:at] = out[at : at + random.randrange(60)]
                case 5:
                    del out[at:]
                case 6:
                    out[at : at + 4] = random.choice(_BIG).to_bytes(8, "big", signed=True)[4:]
        return bytes(out)

    def frame(self) -> bytes:
        random = self._random
        number, topic = random.randrange(1 << 20), f"Topic{random.randrange(21)}"
        sizes = (0, 1, 7, 15, 16, 17, 63, 64, 65, 79, 80, 200)
        bodies = [random.randbytes(random.choice(sizes)) for _ in range(random.choice((1, 2, 5, 40)))]
        padding = self.mostly(1, 4000, 4040, random.randrange(8192), 32700, 40000)
        if random.random() < 0.5:
            head, body = direct.single(number, bodies[0], topic, padding)
        else:
            head, body = direct.batch(number, bodies, topic, min(padding, 32_700))
        match random.randrange(5):
            case 0:
                head = self.mutated(head)
            case 1:
                body = self.mutated(body)
            case 2:
                head, body = self.mutated(head), self.mutated(body)
            case 3:
                return self.mutated(direct.framed(head, body))
        return direct.framed(head, body)

    def mostly(self, usual: int, *rare: int) -> int:
        return usual if self._random.random() < 0.9 else self._random.choice(rare)

    def stage(self) -> None:
        random = self._random
        data = b"".join(self.frame() for _ in range(random.choice((1, 1, 2, 5))))
        start = min(self.mostly(0, 1, len(data)), len(data))
        end = max(start, self.mostly(len(data), random.randrange(len(data) + 1)))
        host = random.choice((direct.STORE_HOST, bytes(20)))
        position = self.mostly(1000, 0, _LAST)
        limits: dict[str, Any] = {
            "topics": self._topics,
            "settings": direct.settings_of(self.mostly(1 << 22, 100, -1), self.mostly(1 << 24, 300), host),
            "position": position,
            "room_end": self.mostly(_LAST, position, min(position + 700, _LAST)),
            "born_host": random.choice((direct.BORN_HOST, bytes(20))),
        }
        found = direct.stage(self._module.stage_frames, data, start, end, **limits)
        # A copy with nothing behind its end: whoever reads on there is seen by the sanitizer, or gives another result.
        assert found == direct.stage(self._module.stage_frames, data[:end], start, end, **limits)
        if found is not None:
            self.taken += 1
            self.check(found, position, start, end)

    def check(self, found: tuple[Any, ...], position: int, start: int, end: int) -> None:
        reached, after, records, answers, queues, hashes, offsets, counts = found
        assert start < reached <= end
        assert after - position == len(records)
        places = set()
        at = 0
        while at < len(records):
            size = int.from_bytes(records[at : at + 4], "big")
            assert size >= 91
            assert int.from_bytes(records[at + 28 : at + 36], "big") == position + at
            places.add(position + at)
            at += size
        assert at == len(records)
        units = b"".join(part for _, part in queues)
        steps = range(0, len(units), _UNIT_BYTES)
        assert sorted(int.from_bytes(units[at : at + 8], "big") for at in steps) == sorted(places)
        assert sum(count for _, count, _ in counts) == len(places)
        assert len(hashes) * 2 == len(offsets)
        at = 0
        while at < len(answers):
            at += 4 + int.from_bytes(answers[at : at + 4], "big")
        assert at == len(answers)

    def gather(self) -> None:
        random = self._random
        segment = random.randbytes(random.choice((0, 1, 100, 4096)))
        base = random.choice((0, 0, 4096, *_BIG))
        units = b"".join(
            (random.choice((base + random.randrange(4200), random.choice(_BIG))) % (1 << 64)).to_bytes(
                8, "big"
            )
            + (random.choice((random.randrange(300), random.choice(_BIG))) % (1 << 32)).to_bytes(4, "big")
            + bytes(8)
            for _ in range(random.choice((0, 1, 3, 40)))
        ) + bytes(random.choice((0, 0, 0, 19)))
        limits = [random.choice((5, 1000, *_BIG)) for _ in range(2)]
        log_end = random.choice((_LAST, _LAST, base, *_BIG))
        records, count = self._module.gather(units, segment, base, log_end, *limits)
        assert count <= max(limits[0], 1)
        at = 0
        for number in range(count):
            unit = units[number * _UNIT_BYTES :]
            place = int.from_bytes(unit[:8], "big") - base
            size = int.from_bytes(unit[8:12], "big")
            assert records[at : at + size] == segment[place : place + size]
            at += size
        assert at == len(records)

    def pull(self) -> None:
        """Its header, mutated, and its answer, from units that point anywhere."""
        random = self._random
        names = (
            "queueId",
            "queueOffset",
            "maxMsgNums",
            "sysFlag",
            "commitOffset",
            "suspendTimeoutMillis",
            "subVersion",
        )
        numbers = {name: str(random.choice((7, *_BIG))) for name in names}
        texts = {"consumerGroup": "G" * self.mostly(3, 1000, 1020, 1030), "topic": "T", "subscription": "*"}
        head = self.mutated(direct.header(11, texts | numbers, random.randrange(1 << 31)))
        found = self._module.read_pull(head + b'"}', 0, len(head))
        assert found == self._module.read_pull(head, 0, len(head))
        segment = random.randbytes(500)
        units = random.randrange(600).to_bytes(8, "big") + random.randrange(300).to_bytes(4, "big") + bytes(8)
        place = (units * random.choice((0, 1, 3)), segment, 0, random.choice((500, *_BIG)), 5, 1000, None)
        given = [random.choice(_BIG) for _ in range(5)]
        frame, count, size = self._module.found_page(*place, (b"a",) * 6, *given)
        records, expected = self._module.gather(*place)
        assert (count, size) == (expected, len(records))
        assert frame.endswith(records)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        if not random.randrange(20):
            self.page_to_socket()

    def page_to_socket(self) -> None:
        """Units anywhere in a segment large enough to be written past Python."""
        random = self._random
        segment = bytes(100_000)
        sizes = [
            random.choice((0, 1, 5000, 70_000, *_BIG)) & 0xFFFFFFFF for _ in range(random.choice((1, 3, 400)))
        ]
        at = random.choice((0, 1, 99_999))
        units = b""
        for size in sizes:
            units += (at & (1 << 64) - 1).to_bytes(8, "big") + size.to_bytes(4, "big") + bytes(8)
            at += random.choice((0, size))
        place = (units, segment, 0, len(segment), len(sizes), random.choice((0, 90_000, 1 << 40)), None)
        near, far = socket.socketpair()
        with near, far:
            whole = self._module.found_page(*place, (b"a",) * 6, 1, 2, 3, 4, 5)
            rest = self._module.found_page(*place, (b"a",) * 6, 1, 2, 3, 4, 5, near.fileno())
            assert rest[1:] == whole[1:]
            assert len(rest[0]) <= len(whole[0])
            assert whole[0].endswith(rest[0])

    def follow(self) -> None:
        """Records as a master would send them, then anything."""
        random = self._random
        base = random.choice((0, 4096, 1 << 40))
        parts: list[bytes] = []
        for _ in range(random.choice((1, 2, 6))):
            topic, queue_id = f"Topic{random.randrange(21)}", random.randrange(5)
            text = b"UNIQ_KEY\x01%d\x02TAGS\x01A\x02KEYS\x01a b" % random.randrange(9)
            record = encode_record(
                topic=topic,
                body=random.randbytes(random.choice((0, 1, 70, 200))),
                properties=random.choice((text, b"", self.mutated(text))),
                queue_id=queue_id,
                queue_offset=queue_id,
                physical_offset=base + sum(map(len, parts)),
                sys_flag=self.mostly(0, 4, 8, 12, 3),
                store_ms=self.mostly(5, 6),
                born_host=random.choice((direct.BORN_HOST, bytes(20))),
            )
            parts.append(self.mutated(record) if random.random() < 0.3 else record)
        data = b"".join(parts)
        start = min(self.mostly(0, 1, len(data)), len(data))
        end = max(start, self.mostly(len(data), random.randrange(len(data) + 1)))
        found = self._module.follow(data, base, start, end, self._topics)
        assert found == self._module.follow(data[:end], base, start, end, self._topics)
        if found is not None:
            reached, _, queues, hashes, offsets = found
            assert start < reached <= end
            assert len(hashes) * 2 == len(offsets)
            units = b"".join(part for _, part in queues)
            sizes = sum(
                int.from_bytes(units[at + 8 : at + 12], "big") for at in range(0, len(units), _UNIT_BYTES)
            )
            assert sizes == reached - start
        whole, _ = self._module.whole_records(data, base, self.mostly(1 << 30, 1, 100, 4096))
        assert 0 <= whole <= len(data)
        for wrong in ((-1, 5), (5, 0), (5, -1)):
            try:
                self._module.whole_records(data, *wrong)
            except ValueError:
                continue
            raise AssertionError(f"{wrong} was taken")

    def bodies(self) -> None:
        """Records of one queue, one behind the other or where units say they are; some of it is garbage."""
        random = self._random
        base, first = random.choice((0, 4096, 1 << 40)), random.choice((0, 7, _LAST - 100))
        parts: list[bytes] = []
        for number in range(random.choice((1, 2, 6))):
            made = encode_record(
                topic="T",
                body=random.randbytes(random.choice((0, 1, 70, 200))),
                queue_id=3,
                queue_offset=first + number,
                physical_offset=base + sum(map(len, parts)),
                sys_flag=self.mostly(0, 1, 2, 8, 0x10, 0xC0),
            )
            parts.append(self.mutated(made) if random.random() < 0.2 else made)
        page = b"".join(parts)
        rows, size = random.choice((0, 1, 2, 10)), random.choice((0, 60, 2000))
        heads = random.choice((None, bytearray(88 * random.choice((0, 1, 10)))))
        room = bytearray(size), bytearray(4 * (rows + 1))
        taken, used, left = self._module.page_bodies(page, first, heads, *room)
        self.check_bodies(page[: len(page) - left], taken, used, heads, *room)
        units = b"".join(
            (random.choice((place, random.choice(_BIG))) % (1 << 64)).to_bytes(8, "big")
            + (random.choice((length, length, random.choice(_BIG))) % (1 << 32)).to_bytes(4, "big")
            + bytes(8)
            for place, length in zip(
                (base + sum(map(len, parts[:n])) for n in range(len(parts))), map(len, parts), strict=True
            )
        )
        limit = random.choice((_LAST, base + len(page), *_BIG))
        row = self.mostly(0, 1, -1, 50)
        taken, used = self._module.unit_bodies(
            units, row, first + max(row, 0), 3, page, base, limit, heads, *room
        )
        assert (taken == 0) <= (used == 0)
        assert taken <= min(rows, len(parts))
        assert used <= size

        given = units, row, first + max(row, 0), 3, page, base, limit, heads, *room
        with_properties, properties = self._module.unit_properties(*given)
        assert with_properties <= min(rows, len(parts))
        assert 2 * with_properties <= properties <= size

        places, sizes = bytearray(8 * rows), bytearray(4 * random.choice((rows, rows, 3)))
        found = self._module.unit_places(
            units, row, first + max(row, 0), 3, page, base, limit, heads, places, sizes
        )
        assert found <= min(rows, len(sizes) // 4, len(parts))
        assert found >= taken or len(sizes) // 4 < taken
        for number in range(found):
            place = int.from_bytes(places[8 * number :][:8], sys.byteorder) - base
            assert 88 <= place <= len(page) - int.from_bytes(sizes[4 * number :][:4], sys.byteorder)

        self.parts(units, page, base, limit, first)

    def parts(self, units: bytes, page: bytes, base: int, limit: int, first: int) -> None:
        """The same as parts of a page; what a socket does not take of it comes back."""
        random = self._random
        place = (units, page, base, limit, self.mostly(10, 0, 1), random.choice((0, 300, 1 << 20)), None)
        wanted = random.choice((*range(8), -1, 8))
        given = (*place, (b"a",) * 6, 1, 2, first, 4, 5)
        frame, count, size = self._module.found_parts(*given, -1, wanted)
        assert count <= len(units) // _UNIT_BYTES
        assert (count == 0) == (not frame)
        if count:
            assert int.from_bytes(frame[:4], "big") == len(frame) - 4
            cut = frame[8 + int.from_bytes(frame[4:8], "big") :]
            assert [int.from_bytes(cut[at : at + 4], "little") for at in (0, 4)] == [count, size]
        if not random.randrange(20):
            self.parts_to_socket(wanted)

    def parts_to_socket(self, wanted: int) -> None:
        random = self._random
        bodies = [random.randbytes(random.choice((0, 5000, 20_000))) for _ in range(random.choice((5, 2000)))]
        page, units = b"", b""
        for number, body in enumerate(bodies[:40]):
            made = encode_record(topic="T", body=body, queue_offset=number)
            units += len(page).to_bytes(8, "big") + len(made).to_bytes(4, "big") + bytes(8)
            page += made
        units *= random.choice((1, 1, 60))  # the second time over, their numbers are wrong
        given = (units, page, 0, len(page), 8192, 1 << 30, None, (b"a",) * 6, 1, 2, 0, 4, 5)
        near, far = socket.socketpair()
        with near, far:
            whole = self._module.found_parts(*given, -1, wanted)
            rest = self._module.found_parts(*given, near.fileno(), wanted)
            assert rest[1:] == whole[1:]
            assert whole[0].endswith(rest[0])

    def check_bodies(
        self, page: bytes, taken: int, used: int, heads: bytearray | None, bodies: bytearray, ends: bytearray
    ) -> None:
        at = end = 0
        for number in range(taken):
            size, length = (int.from_bytes(page[at + k : at + k + 4], "big") for k in (0, 84))
            assert bodies[end : end + length] == page[at + 88 : at + 88 + length]
            end += length
            assert int.from_bytes(ends[4 * number + 4 : 4 * number + 8], sys.byteorder) == end
            if heads is not None:
                assert heads[88 * number : 88 * number + 88] == page[at : at + 88]
            at += size
        assert at == len(page)
        assert end == used

    def index(self) -> None:
        random = self._random
        slots, entries = random.choice((1, 7)), random.choice((2, 50))
        size = 40 + slots * 4 + entries * 20
        area = bytearray(random.randbytes(size))
        rows = random.choice((0, 1, 3, 60))
        columns = [
            b"".join(
                random.choice((random.randrange(1 << 31), random.choice(_BIG))).to_bytes(
                    8, sys.byteorder, signed=True
                )
                for _ in range(rows)
            )
            for _ in range(3)
        ]
        count, begin_ms = random.choice((1, 2, entries - 1, *_BIG)), random.choice((0, 5, *_BIG))
        entries_at = random.choice((40 + slots * 4, 40 + slots * 4, *_BIG))
        given_slots = random.choice((slots, slots, slots, *_BIG))
        before = bytes(area)
        try:
            used = self._module.put_index(area, entries_at, given_slots, count, begin_ms, *columns)
        except ValueError:
            assert area == before
        else:
            assert 0 <= used <= rows

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(50):
                self.stage()
                self.gather()
                self.pull()
                self.index()
                self.follow()
                self.bodies()
                self.calls += 13


def main() -> None:
    path, seconds, seed = sys.argv[1:]
    fuzzer = Fuzzer(load(path), int(seed))
    fuzzer.run(float(seconds))
    print(f"{fuzzer.calls} calls, frames were taken in {fuzzer.taken}")
    assert fuzzer.taken


if __name__ == "__main__":
    main()
