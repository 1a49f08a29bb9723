"""Three ways of taking a send: the accelerator, its Python twin and the plain way, fed with the same frames."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbitmq import accel
from orbitmq.broker.send_shapes import _SPECIAL
from orbitmq.wire.batch import encode_batch
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import Command, encode, request
from tests.accel import odd_frames
from tests.support.raw_client import send_ext
from tests.support.send_sides import LOG_FILE_BYTES, PEERS, TOPIC, Side, Wire, answer_essence, essence

if accel.stage_frames is None:
    pytest.skip("the accelerator is not built", allow_module_level=True)

ROOM = 100_000
"""Left in the log's first file, unless a test wants to see its end: far from it all ways use the same file."""


class Trio:
    """The same broker three times."""

    def __init__(self, root: Path, peer: str = PEERS[0], room: int = ROOM) -> None:
        self.fast = Side(root / "fast", hot=True, accelerate=True)
        self.twin = Side(root / "twin", hot=True, accelerate=False)
        self.plain = Side(root / "plain", hot=False)
        self.sides = (self.fast, self.twin, self.plain)
        self.wires = [Wire(peer) for _ in self.sides]
        self.start = LOG_FILE_BYTES - room
        for side in self.sides:
            side.leave_room(room)

    def read(self, frames: list[bytes]) -> list[Command]:
        """One network read; the answers must be the same."""
        fast, twin, plain = (
            sorted(side.read(wire, frames), key=lambda answer: (answer.opaque, answer_essence(answer)[0]))
            for side, wire in zip(self.sides, self.wires, strict=True)
        )
        assert [vars_of(answer) for answer in fast] == [vars_of(answer) for answer in twin]
        assert sorted(map(repr, map(answer_essence, fast))) == sorted(map(repr, map(answer_essence, plain)))
        assert len({wire.closed for wire in self.wires}) == 1
        return fast

    @property
    def closed(self) -> bool:
        return self.wires[0].closed

    def check(self) -> None:
        """Everything stored is the same: byte by byte between the twins, in substance on the plain way."""
        fast, twin, plain = self.sides
        assert fast.world.store.log.position == twin.world.store.log.position
        assert fast.log_bytes(self.start) == twin.log_bytes(self.start)
        assert fast.whole_units() == twin.whole_units()
        assert fast.index_files() == twin.index_files()
        assert list(map(essence, fast.messages(self.start))) == list(map(essence, plain.messages(self.start)))
        assert fast.units() == plain.units()
        assert list(fast.world.stats.topic_totals()) == list(twin.world.stats.topic_totals())

    def close(self) -> None:
        for side in self.sides:
            side.close()


def vars_of(answer: Command) -> tuple[object, ...]:
    return answer.code, answer.flag, answer.opaque, answer.ext, answer.remark, answer.body, answer.codec


def usual(topic: str, queue_id: int, number: int, body: bytes = b"body", flag: int = 0) -> bytes:
    text = (
        f"UNIQ_KEY\x01C0000202{number:024X}\x02WAIT\x01true\x02TAGS\x01Tag{number % 3}\x02KEYS\x01k{number}"
    )
    command = request(RequestCode.SEND_MESSAGE_V2, send_ext(topic, queue_id, text), body)
    command.opaque, command.flag = number, flag
    return encode(command)


def usual_batch(topic: str, queue_id: int, number: int, messages: int, body: bytes = b"body") -> bytes:
    items = [(0, body, b"UNIQ_KEY\x01C0000202%024X\x02WAIT\x01true" % (number + n)) for n in range(messages)]
    ext = send_ext(topic, queue_id, "WAIT\x01true", m="true")
    command = request(RequestCode.SEND_BATCH_MESSAGE, ext, encode_batch(items))
    command.opaque = number
    return encode(command)


@settings(max_examples=60, deadline=None)
@given(reads=odd_frames.reads, peer=st.sampled_from(PEERS))
def test_whatever_comes_is_taken_alike(reads: list[list[bytes]], peer: str) -> None:
    compare(reads, peer)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(reads=odd_frames.reads, peer=st.sampled_from(PEERS))
def test_whatever_comes_for_long_is_taken_alike(reads: list[list[bytes]], peer: str) -> None:
    compare(reads, peer)


def compare(reads: list[list[bytes]], peer: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        trio = Trio(Path(root), peer)
        try:
            for frames in reads:
                trio.read(frames)
                if trio.closed:
                    break
            trio.check()
        finally:
            trio.close()


@settings(max_examples=40, deadline=None)
@given(
    room=st.integers(8, 2500),
    sizes=st.lists(st.integers(0, 700), min_size=1, max_size=6),
    batched=st.lists(st.integers(0, 4), min_size=6, max_size=6),
    peer=st.sampled_from(PEERS),
)
def test_a_file_ends_for_all_at_the_same_record(
    room: int, sizes: list[int], batched: list[int], peer: str
) -> None:
    with tempfile.TemporaryDirectory() as root:
        trio = Trio(Path(root), peer, room)
        try:
            frames = [
                usual_batch(TOPIC, 1, n * 8, messages, bytes(size))
                if messages
                else usual(TOPIC, 0, n * 8, bytes(size))
                for n, (size, messages) in enumerate(zip(sizes, batched, strict=False))
            ]
            assert [answer.code for answer in trio.read(frames)] == [0] * len(frames)
            assert [answer.code for answer in trio.read(frames)] == [0] * len(frames)
            trio.check()
        finally:
            trio.close()


@pytest.fixture
def trio(tmp_path: Path) -> Trio:
    return Trio(tmp_path)


def test_more_queues_and_topics_than_one_call_takes(trio: Trio) -> None:
    random = Random(3)
    for side in trio.sides:
        side.add_topic("Wide", 300)
        for number in range(80):
            side.add_topic(f"Topic{number}", 5)
    places = [(f"Topic{random.randrange(80)}", random.randrange(5)) for _ in range(300)]
    places += [("Wide", queue_id) for queue_id in range(299, -1, -1)]
    frames = [usual(topic, queue_id, number, b"") for number, (topic, queue_id) in enumerate(places)]
    assert [answer.code for answer in trio.read(frames[:300])] == [0] * 300
    assert [answer.code for answer in trio.read(frames[300:])] == [0] * 300
    assert [answer.code for answer in trio.read(frames[::-1])] == [0] * 600
    trio.check()
    trio.close()


def test_the_usual_frames_never_reach_python(trio: Trio) -> None:
    """Otherwise the other tests would compare the twin with itself."""
    gateway = trio.fast.gateway
    seen: list[int] = []
    gateway.frame = lambda *place: seen.append(1)  # type: ignore[method-assign]
    wire = Wire(PEERS[0])
    frames = [usual(TOPIC, n % 3, n) for n in range(30)] + [usual_batch(TOPIC, 0, 100, 20)]
    frames += [usual(TOPIC, 1, 50, flag=2), usual(TOPIC, 1, 51, b"")]
    assert [answer.code for answer in trio.fast.read(wire, frames)] == [0] * 32
    assert not seen
    assert trio.fast.world.store.queue(TOPIC, 0).max_offset == 30
    trio.close()


@pytest.mark.parametrize("name", sorted(_SPECIAL))
def test_what_the_broker_acts_on_is_left_to_it(trio: Trio, name: str) -> None:
    """The list of these names is in C once more."""
    frames = [
        encode(request(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 0, f"{text}\x015"), b"x"))
        for text in (name, "X" + name, name + "X")
    ]
    trio.fast.read(trio.wires[0], [])
    (conn,) = trio.fast._conns.values()
    reached = [trio.fast.gateway.bulk(conn, frame, 0, len(frame)) for frame in frames]
    assert reached == [0, len(frames[1]), len(frames[2])]
    trio.close()


def test_a_text_that_looks_like_a_delay_in_a_body_is_stored(trio: Trio) -> None:
    """The Python twin then prefers the plain way: the same message, its properties in another order."""
    frame = usual_batch(TOPIC, 0, 1, 3, b"DELAY\x01in the body")
    for side, wire in zip(trio.sides, trio.wires, strict=True):
        assert [answer.code for answer in side.read(wire, [frame])] == [0]
    stored = [list(map(essence, side.messages(trio.start))) for side in trio.sides]
    assert len(stored[0]) == 3
    assert stored[0] == stored[1] == stored[2]
    trio.close()


@pytest.mark.parametrize("limit", [4096, 5000])
def test_a_frame_above_the_limit_is_left_to_the_connection(trio: Trio, limit: int) -> None:
    fast = trio.fast
    fast.world.config.max_frame_bytes = limit
    fast.gateway.hot_send.configure()
    fast.gateway.hot_send._queues(TOPIC)
    taken = usual(TOPIC, 0, 1, bytes(limit - len(usual(TOPIC, 0, 1, b""))))
    assert len(taken) == limit
    for frame, reached in ((taken, limit), (usual(TOPIC, 0, 1, bytes(limit)), 0)):
        trio.fast.read(trio.wires[0], [])
        conn = next(iter(fast._conns.values()))
        assert fast.gateway.bulk(conn, frame, 0, len(frame)) == reached
        fast.gateway.read_done(conn)
    trio.close()


def test_an_id_of_another_length_is_no_known_shape(trio: Trio) -> None:
    """The twin remembers what stands around an id of 32 characters: a shorter one must not be filled up."""
    ids = ["7" * 32, "", "5" * 5, "8" * 32, "6" * 31, "9" * 33, "\x01", "7" * 32]
    for behind in ("", "\x02TAGS\x01A"):
        texts = [f"UNIQ_KEY\x01{number}{behind}" for number in ids]
        batch = encode_batch([(0, b"body", text.encode()) for text in texts])
        frames = [
            encode(request(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 0, text), b"x")) for text in texts
        ]
        ext = send_ext(TOPIC, 1, "WAIT\x01true", m="true")
        frames += [encode(request(RequestCode.SEND_BATCH_MESSAGE, ext, batch))] * 2
        assert [answer.code for answer in trio.read(frames)] == [0] * len(frames)
    trio.check()
    trio.close()
