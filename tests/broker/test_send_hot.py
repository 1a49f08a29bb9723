"""The fast way and the plain way of a send, side by side: same records, same answers, whatever the bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orbitmq import accel
from orbitmq.wire.batch import encode_batch
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import CODEC_BINARY, Command, encode, request
from orbitmq.wire.message import Message
from orbitmq.wire.message_id import parse_offset_msg_id
from tests.support.raw_client import pull_ext, send_ext
from tests.support.send_sides import LOG_FILE_BYTES, PEERS, TOPIC, Side, Wire, answer_essence, essence

UNIQUE = "7F0000010DEA63947C6B8C1A2B3C0000"

names = st.sampled_from(
    [
        *("TAGS", "KEYS", "UNIQ_KEY", "WAIT", "XTAGS", "MYWAIT", "TAGSX", "AKEYS", "UNIQ_KEY2", "XUNIQ_KEY"),
        *("CLUSTER", "DELAYED", "a", "日本", "\U0001f680", "", "é"),
    ]
)
values = st.sampled_from(
    [
        *("true", "false", "True", "", "A", "TagA", "k1 k2", " k1  k1 ", "日本", "TAGS", "\x01", "1", "é"),
        *(UNIQUE, UNIQUE[:-1], UNIQUE + "0", "WAIT\x01true", "UNIQ_KEY\x01" + UNIQUE),
    ]
) | st.text(max_size=8)
pairs = st.tuples(names, st.sampled_from(["\x01", "\x01", "\x01", ""]), values).map("".join)
usual = st.sampled_from(
    [
        f"UNIQ_KEY\x01{UNIQUE}\x02WAIT\x01true",
        f"WAIT\x01true\x02UNIQ_KEY\x01{UNIQUE}\x02TAGS\x01TagA",
        f"KEYS\x01k1\x02UNIQ_KEY\x01{UNIQUE[::-1]}\x02WAIT\x01true\x02TAGS\x01TagA\x02",
        f"UNIQ_KEY\x01{UNIQUE[::-1]}\x02WAIT\x01true",
        f"UNIQ_KEY\x01{UNIQUE[:-1]}é\x02WAIT\x01true",
        f"UNIQ_KEY\x01{UNIQUE[:-1]}\x02\x02WAIT\x01true",
        f"TAGS\x01A\x02UNIQ_KEY\x01{UNIQUE}\x02TAGS\x01B\x02TAGS\x01\x02KEYS\x01k1\x02KEYS\x01",
        f"KEYS\x01\x02UNIQ_KEY\x01{UNIQUE}\x02UNIQ_KEY\x01\x02KEYS\x01k1\x02WAIT\x01true\x02WAIT\x01true",
        f"UNIQ_KEY\x01{UNIQUE}\x02UNIQ_KEY\x01{UNIQUE[::-1]}",
        "",
    ]
)
texts = usual | st.builds(
    lambda parts, before, behind: before + "\x02".join(parts) + behind,
    st.lists(pairs, max_size=6),
    st.sampled_from(["", "", "\x02"]),
    st.sampled_from(["", "\x02", "\x02\x02"]),
)
queue_ids = st.sampled_from([0, 1, 2, 2, 3, -1, 99])
sys_flags = st.sampled_from([0, 0, 1, 2, 0x100, 0x201, 0x10, 0x20, 0x30, 0x80])
topics = st.sampled_from([TOPIC] * 4 + ["Fresh", "SCHEDULE_TOPIC_XXXX", "bad name", "%RETRY%g", ""])
bodies = st.sampled_from([b"", b"x", b"body", bytes(range(256)), b"y" * 3000])
opaques = st.integers(0, 1 << 30)
flags = st.sampled_from([0, 0, 0, 0, 2, 2, 1])  # 1: an answer, whatever its code says


@st.composite
def singles(draw: st.DrawFn) -> Command:
    ext = send_ext(
        draw(topics),
        draw(queue_ids),
        draw(texts),
        f=str(draw(sys_flags)),
        h=str(draw(st.sampled_from([0, 1, -1]))),
        j=str(draw(st.sampled_from([0, 0, 0, 3]))),
    )
    if draw(st.booleans()):
        command = request(RequestCode.SEND_MESSAGE_V2, ext, draw(bodies))
    else:
        command = request(RequestCode.SEND_MESSAGE, v1(ext), draw(bodies))
    command.codec = draw(st.sampled_from([0, 0, 0, CODEC_BINARY]))
    command.flag, command.opaque = draw(flags), draw(opaques)
    return command


@st.composite
def batches(draw: st.DrawFn) -> Command:
    items = draw(st.lists(st.tuples(st.sampled_from([0, 5]), bodies, texts), max_size=4))
    body = encode_batch([(flag, content, text.encode()) for flag, content, text in items])
    cut = draw(st.sampled_from([0, 0, 0, 0, 1, 7]))
    ext = send_ext(draw(topics), draw(queue_ids), draw(texts), f=str(draw(sys_flags)), m="true")
    command = request(RequestCode.SEND_BATCH_MESSAGE, ext, body[: len(body) - cut])
    command.flag, command.opaque = draw(flags), draw(opaques)
    return command


def v1(ext: dict[str, str]) -> dict[str, str]:
    long = {
        "a": "producerGroup",
        "b": "topic",
        "c": "defaultTopic",
        "d": "defaultTopicQueueNums",
        "e": "queueId",
        "f": "sysFlag",
        "g": "bornTimestamp",
        "h": "flag",
        "i": "properties",
        "j": "reconsumeTimes",
        "k": "unitMode",
        "m": "batch",
    }
    return {long[letter]: value for letter, value in ext.items()}


@pytest.fixture(params=["accelerated", "python"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast way has a twin of its own: without the compiled module the same is done in Python."""
    if request.param == "python":
        monkeypatch.setattr(accel, "stage_frames", None)


@pytest.mark.usefixtures("_way")
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    reads=st.lists(st.lists(singles() | batches(), min_size=1, max_size=6), min_size=1, max_size=4),
    peer=st.sampled_from(PEERS),
)
def test_both_ways_store_and_answer_the_same(reads: list[list[Command]], peer: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        hot, plain = Side(Path(root, "hot"), hot=True), Side(Path(root, "plain"), hot=False)
        hot_wire, plain_wire = Wire(peer), Wire(peer)
        try:
            for commands in reads:
                frames = [encode(command) for command in commands]
                answers, expected = hot.read(hot_wire, frames), plain.read(plain_wire, frames)
                # Answers to one read may leave in another order: each carries the number of its request.
                assert sorted(map(answer_essence, answers), key=repr) == sorted(
                    map(answer_essence, expected), key=repr
                )
                assert hot_wire.closed == plain_wire.closed
                check_ids(hot, answers)
                check_ids(plain, expected)
            stored, wanted = hot.messages(), plain.messages()
            assert [essence(message) for message in stored] == [essence(message) for message in wanted]
            assert hot.units() == plain.units()
            check_keys(hot, plain, wanted)
        finally:
            hot.close()
            plain.close()


def check_ids(side: Side, answers: list[Command]) -> None:
    """An answer's ids and offsets name the records that were stored for it."""
    records = {message.physical_offset: message for message in side.messages()}
    for answer in answers:
        if answer.code == ResponseCode.SUCCESS:
            for position, msg_id in enumerate(answer.ext["msgId"].split(",")):
                message = records[parse_offset_msg_id(msg_id)[2]]
                assert message.queue_offset == int(answer.ext["queueOffset"]) + position
                assert message.queue_id == int(answer.ext["queueId"])


def check_keys(hot: Side, plain: Side, messages: list[Message]) -> None:
    keys = {(message.topic, key) for message in messages for key in [*message.key_list, message.msg_id]}
    for topic, key in sorted(keys):
        assert hot.found_by(topic, key) == plain.found_by(topic, key), (topic, key)
    for number, message in enumerate(messages):
        for key in message.key_list:
            assert number in plain.found_by(message.topic, key)


@pytest.fixture
def sides(tmp_path: Path, _way: None) -> Iterator[list[Side]]:
    both = [Side(tmp_path / "hot", hot=True), Side(tmp_path / "plain", hot=False)]
    yield both
    for side in both:
        side.close()


def test_the_usual_send_takes_the_fast_way(sides: list[Side]) -> None:
    hot = sides[0]
    hot.gateway.handlers = {}
    hot.gateway.hot_send._slow = lambda *frame: pytest.fail("this message is as plain as can be")
    wire = Wire(PEERS[0])
    text = f"UNIQ_KEY\x01{UNIQUE}\x02WAIT\x01true\x02TAGS\x01TagA"
    frames = [encode(request(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 0, text), b"x")) for _ in range(3)]
    assert [answer.code for answer in hot.read(wire, frames)] == [0, 0, 0]
    assert [message.queue_offset for message in hot.messages()] == [0, 1, 2]
    assert hot.messages()[0].properties == {"UNIQ_KEY": UNIQUE, "TAGS": "TagA", "CLUSTER": "DefaultCluster"}


@pytest.mark.parametrize("size", [900_000, LOG_FILE_BYTES - 300, LOG_FILE_BYTES - 99, 2 * LOG_FILE_BYTES])
def test_a_message_larger_than_a_log_file_is_refused(sides: list[Side], size: int) -> None:
    """A record never crosses the end of a file."""
    for side in sides:
        frame = encode(request(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 0, "WAIT\x01true"), bytes(size)))
        small = encode(request(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 0, "WAIT\x01true"), b"small"))
        codes = [answer.code for answer in side.read(Wire(PEERS[0]), [small, frame, small])]
        fits = size <= LOG_FILE_BYTES - 300
        assert sorted(codes) == ([0, 0, 0] if fits else [0, 0, ResponseCode.MESSAGE_ILLEGAL])
        assert len(side.messages()) == len([code for code in codes if code == 0])
        for base in side.world.store.log.series.bases:
            assert side.world.store.disk.size(side.world.store.log.series.path(base)) == LOG_FILE_BYTES


def test_a_batch_that_grows_beyond_a_log_file_is_stored_all_the_same(sides: list[Side]) -> None:
    """Thousands of tiny messages take ten times their bytes in the log."""
    for side in sides:
        body = encode_batch([(0, b"x", b"") for _ in range(12_000)])
        frame = encode(request(RequestCode.SEND_BATCH_MESSAGE, send_ext(TOPIC, 0, m="true"), body))
        answers = side.read(Wire(PEERS[0]), [frame, frame])
        assert [answer.code for answer in answers] == [0, 0]
        assert [message.queue_offset for message in side.messages()] == list(range(24_000))
        for base in side.world.store.log.series.bases:
            assert side.world.store.disk.size(side.world.store.log.series.path(base)) == LOG_FILE_BYTES


def test_an_id_of_another_length_is_no_known_shape(sides: list[Side]) -> None:
    """What stands around an id of 32 characters is remembered; a shorter id must not be filled up."""
    ids = [UNIQUE, "", "5" * 5, UNIQUE[::-1], UNIQUE[:-1], UNIQUE + "0", UNIQUE]
    stored = []
    for side in sides:
        texts = [f"UNIQ_KEY\x01{unique}" for unique in ids]
        sends = [request(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 0, text), b"x") for text in texts]
        body = encode_batch([(0, b"x", text.encode()) for text in texts])
        sends.append(request(RequestCode.SEND_BATCH_MESSAGE, send_ext(TOPIC, 1, m="true"), body))
        answers = side.read(Wire(PEERS[0]), [encode(command) for command in sends])
        assert [answer.code for answer in answers] == [0] * len(sends)
        stored.append([essence(message) for message in side.messages()])
        assert [message.properties.get("UNIQ_KEY", "") for message in side.messages()] == ids * 2
    assert stored[0] == stored[1]


def test_a_pull_in_the_same_read_loses_no_answer(sides: list[Side]) -> None:
    """A pull from nowhere makes the broker store an event of its own while messages are on their way in."""
    for side in sides:
        world = side.world
        cast(Any, world).offset_moved = lambda *place, world=world: world.put("OFFSET_MOVED_EVENT", 0)
        cast(Any, world).suggested_broker_id = lambda *about: 0
        wire = Wire(PEERS[0])
        batch = request(
            RequestCode.SEND_BATCH_MESSAGE, send_ext(TOPIC, 0, m="true"), encode_batch([(0, b"x", b"")])
        )
        pull = request(RequestCode.PULL_MESSAGE, pull_ext(TOPIC, 0, 1000))
        batch.opaque, pull.opaque = 1, 2
        answers = side.read(wire, [encode(batch), encode(pull)])
        assert sorted(answer.opaque for answer in answers) == [1, 2]
        assert side.read(Wire(PEERS[1]), [encode(pull)])[0].opaque == 2
