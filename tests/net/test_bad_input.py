"""What a server must bear: bytes that are no commands, and commands that make no sense. It answers or hangs up."""

from __future__ import annotations

import asyncio
import struct
from random import Random

import pytest

from orbitmq.wire.batch import encode_batch
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import CODEC_BINARY, Command, encode, request
from orbitmq.wire.headers import REQUEST_HEADERS
from tests.net.misuse import LARGEST_FRAME, MAX_BODY, QUEUES, TOPIC, answer_to, frame, hangs_up
from tests.support.raw_client import RawClient, pull_ext, send_ext
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.usefixtures("still_serves")


@pytest.mark.parametrize(
    "length", [0, 1, 3, LARGEST_FRAME, LARGEST_FRAME * 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
)
def test_impossible_lengths_end_the_connection(addr: str, length: int) -> None:
    hangs_up(addr, struct.pack(">I", length) + b"x" * 100)


@pytest.mark.parametrize(
    "hello",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"POST /send HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"SSH-2.0-OpenSSH_9.0\r\n",
        b"\r\n\r\n",
    ],
)
def test_other_protocols_are_sent_away(addr: str, hello: bytes) -> None:
    hangs_up(addr, hello)


def test_the_log_says_which_protocol_knocked(server: ServerProcess) -> None:
    hangs_up(server.broker_addr, b"GET / HTTP/1.1\r\n\r\n")
    hangs_up(server.broker_addr, b"\x16\x03\x01\x02\x00\x01\x00\x01")
    hangs_up(server.broker_addr, struct.pack(">I", 0x7FFFFFFF))
    assert "it speaks HTTP" in server.printed
    assert "it speaks TLS" in server.printed
    assert "a frame of 2147483647 bytes was announced" in server.printed


@pytest.mark.parametrize(
    "data",
    [
        frame(b""),
        frame(b"{"),
        frame(b"not json at all"),
        frame(b"[1,2,3]"),
        frame(b'{"flag":0,"opaque":1}'),
        frame(b'{"code":"ten","opaque":1}'),
        frame(b'{"code":10.5,"opaque":1}'),
        frame(b'{"code":99999999999,"opaque":1}'),
        frame(b'{"code":10,"opaque":1,"extFields":[1]}'),
        frame(b'{"code":310,"opaque":1,"extFields":"text"}'),
        frame(b"[" * 100_000),
        frame(b'{"code":310,"a":' * 20_000),
        frame(b"\xff\xfe\xfd"),
        frame(b"{}", codec=7),
        frame(b"{}", codec=0xFF),
        frame(b"\x00\x01", codec=1),
        frame(
            b"\x00\x0a\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x7f\xff\xff\xff\x00\x00\x00\x00", codec=1
        ),
        frame(bytes(21), codec=1)[:-1] + b"\xff",
        struct.pack(">II", 10, 0x00FFFFFF) + b"123456",
    ],
)
def test_frames_without_a_command_end_the_connection_or_are_answered(addr: str, data: bytes) -> None:
    async def talk() -> None:
        async with RawClient(addr) as client:
            client.writer.write(data)
            try:
                async with asyncio.timeout(5):
                    answer = await client.read()
            except ConnectionError:
                return
            assert answer.code != ResponseCode.SUCCESS and answer.remark

    asyncio.run(talk())


def test_text_that_is_no_text(addr: str) -> None:
    """Lone surrogates and raw control characters: the answer must still be one that can be written."""
    for topic in (b"\\ud800", b"\\udc00\\ud800", b"a\x01b", b"\\u0000", b"\xed\xa0\x80"):
        for code in (b"310", b"10", b"11", b"105", b"17"):
            letters = b",".join(
                b'"%b":"%b"' % (letter, topic) for letter in (b"a", b"b", b"topic", b"properties")
            )
            header = b'{"code":%b,"extFields":{%b},"flag":0,"opaque":5}' % (code, letters)

            async def talk(header: bytes = header) -> None:
                async with RawClient(addr) as client:
                    client.writer.write(frame(header))
                    try:
                        async with asyncio.timeout(5):
                            answer = await client.read()
                    except ConnectionError:
                        return
                    assert answer.opaque == 5
                    assert answer.code != ResponseCode.SUCCESS

            asyncio.run(talk())


def test_random_bytes(addr: str) -> None:
    random = Random(5)

    async def talk() -> None:
        for _ in range(150):
            async with RawClient(addr) as client:
                data = random.randbytes(random.randrange(1, 3000))
                if random.random() < 0.5:  # a good length in front lets the rest be looked at
                    data = struct.pack(">I", len(data)) + data
                if random.random() < 0.5:
                    data = encode(request(310, send_ext(TOPIC, 0), data))
                    at = random.randrange(4, len(data))
                    data = data[:at] + random.randbytes(1) + data[at + 1 :]
                client.writer.write(data)
                await asyncio.sleep(0)

    asyncio.run(talk())


def test_a_good_request_cut_anywhere_into_pieces_is_understood(server: ServerProcess) -> None:
    async def talk() -> None:
        async with RawClient(server.broker_addr) as client:
            command = request(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 1), b"in pieces")
            command.opaque = 9
            data = encode(command)
            for byte in range(0, len(data), 7):
                client.writer.write(data[byte : byte + 7])
                await client.writer.drain()
                await asyncio.sleep(0.001)
            assert (await client.answer(9)).code == ResponseCode.SUCCESS

    asyncio.run(talk())


# --- commands that make no sense -------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, -1, 7, 9999, 32767, 2**31 - 1])
def test_unknown_codes_get_code_3(addr: str, code: int) -> None:
    answer = answer_to(addr, request(code))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert f"request type {code} not supported" in (answer.remark or "")


JUNK = ("", "x", "-1", "99999999999999999999", "1.5", "true", "null", "%s", "日本", "../../etc", "a" * 5000)


@pytest.mark.parametrize("codec", [0, CODEC_BINARY])
def test_every_request_survives_junk_in_its_header_and_body(addr: str, codec: int) -> None:
    random = Random(3)
    # These change the server for all that come: not with whatever junk happens to be valid.
    left_out = {RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG}

    async def talk() -> None:
        for code in sorted(set(RequestCode) - left_out):
            header_type = REQUEST_HEADERS.get(code)
            fields = [] if header_type is None else [f.encode_name for f in _fields(header_type)]
            async with RawClient(addr) as client:
                for body in (b"", b"{", b"\x00\xff", b"[]", b'{"offsetTable":{"a":[]}}', b"1" * 3000):
                    ext = {name: random.choice(JUNK) for name in fields}
                    command = request(code, ext if random.random() < 0.8 else {}, body)
                    command.codec = codec
                    (number,) = client.write([command])
                    try:
                        await client.answer(number)
                    except TimeoutError:
                        raise AssertionError(
                            f"{code!r} with {ext} and {body[:20]!r} gets no answer"
                        ) from None

    asyncio.run(talk())


def _fields(header_type: type) -> tuple[object, ...]:
    import msgspec

    return msgspec.structs.fields(header_type)


WRONG_SENDS = {
    "no queue id": ({"e": None}, "field e"),
    "a word as queue id": ({"e": "first"}, "field e"),
    "a fraction as queue id": ({"e": "1.5"}, "field e"),
    "no topic": ({"b": None}, "field b"),
    "a word as time": ({"g": "yesterday"}, "field g"),
    "a queue id past 32 bits": ({"e": str(1 << 40)}, "field e"),
}


@pytest.mark.parametrize("case", WRONG_SENDS)
@pytest.mark.parametrize("codec", [0, CODEC_BINARY])
def test_wrong_types_are_named(server: ServerProcess, case: str, codec: int) -> None:
    changes, named = WRONG_SENDS[case]
    ext = {name: value for name, value in {**send_ext(TOPIC, 0), **changes}.items() if value is not None}
    command = request(RequestCode.SEND_MESSAGE_V2, ext, b"x")
    command.codec = codec
    answer = answer_to(server.broker_addr, command)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert named in (answer.remark or "")


@pytest.mark.parametrize(
    ("topic", "code", "words"),
    [
        ("Nowhere", ResponseCode.TOPIC_NOT_EXIST, "topic[Nowhere] not exist"),
        ("bad name", ResponseCode.SYSTEM_ERROR, "illegal characters"),
        ("../../passwd", ResponseCode.SYSTEM_ERROR, "illegal characters"),
        ("x" * 128, ResponseCode.SYSTEM_ERROR, "longer than"),
        ("", ResponseCode.SYSTEM_ERROR, "blank"),
        ("日本", ResponseCode.SYSTEM_ERROR, "illegal characters"),
        ("SCHEDULE_TOPIC_XXXX", ResponseCode.NO_PERMISSION, "forbidden"),
    ],
)
def test_topics_that_cannot_be_sent_to(server: ServerProcess, topic: str, code: int, words: str) -> None:
    for request_code, ext, body in (
        (RequestCode.SEND_MESSAGE_V2, send_ext(topic, 0), b"x"),
        (RequestCode.SEND_BATCH_MESSAGE, send_ext(topic, 0, m="true"), encode_batch([(0, b"x", b"")])),
    ):
        answer = answer_to(server.broker_addr, request(request_code, ext, body))
        assert answer.code == code
        assert words in (answer.remark or "")


def test_topics_and_groups_with_illegal_names_cannot_be_made(server: ServerProcess) -> None:
    async def talk() -> None:
        async with RawClient(server.broker_addr) as client:
            for name in ("bad name", "a/b", "../x", "", "x" * 300):
                with pytest.raises(AssertionError, match="request 17"):
                    await client.create_topic(name, 1)

    asyncio.run(talk())


@pytest.mark.parametrize("queue_id", [QUEUES, 1 << 20, 2**31 - 1])
def test_queues_that_are_not_there(server: ServerProcess, queue_id: int) -> None:
    answer = answer_to(
        server.broker_addr, request(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, queue_id), b"x")
    )
    assert answer.code == ResponseCode.SYSTEM_ERROR and str(queue_id) in (answer.remark or "")
    answer = answer_to(server.broker_addr, request(RequestCode.PULL_MESSAGE, pull_ext(TOPIC, queue_id, 0)))
    assert answer.code == ResponseCode.SYSTEM_ERROR and str(queue_id) in (answer.remark or "")


def test_a_pull_for_nothing_or_from_nowhere(server: ServerProcess) -> None:
    async def talk() -> None:
        async with RawClient(server.broker_addr) as client:
            sent = await client.ok(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 2), b"x")
            offset = int(sent.ext["queueOffset"])
            for many in (0, -5, 2**31 - 1):
                answer = await client.pull(TOPIC, 2, offset, many)
                assert answer.code == ResponseCode.SUCCESS, (
                    f"maxMsgNums {many}: {answer.code} {answer.remark}"
                )
                assert int(answer.ext["nextBeginOffset"]) == offset + 1
            for nowhere in (-1, -(2**63), 2**63 - 1, offset + 100):
                answer = await client.pull(TOPIC, 2, nowhere)
                assert answer.code == ResponseCode.PULL_OFFSET_MOVED
                assert 0 <= int(answer.ext["nextBeginOffset"]) <= offset + 1

    asyncio.run(talk())


def test_bodies_and_properties_over_the_limit(server: ServerProcess) -> None:
    long_text = "long\x01" + "x" * 40_000
    for code, ext, body, words in (
        (RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 0), bytes(MAX_BODY + 1), "maxMessageSize"),
        (RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 0, long_text), b"x", "properties"),
        (RequestCode.SEND_BATCH_MESSAGE, send_ext(TOPIC, 0, m="true"), bytes(MAX_BODY + 1), "maxMessageSize"),
        (
            RequestCode.SEND_BATCH_MESSAGE,
            send_ext(TOPIC, 0, long_text, m="true"),
            encode_batch([(0, b"x", b"")]),
            "properties",
        ),
    ):
        answer = answer_to(server.broker_addr, request(code, ext, body))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert words in (answer.remark or "")
    exactly = answer_to(
        server.broker_addr, request(RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 0), bytes(MAX_BODY))
    )
    assert exactly.code == ResponseCode.SUCCESS


def test_batches_with_broken_items_store_nothing(server: ServerProcess) -> None:
    good = encode_batch([(0, b"one", b"a\x01b"), (0, b"two", b"")])
    item = encode_batch([(0, b"x", b"")])
    broken = [
        good[:-1],
        good + b"\x00",
        good + b"\x00" * 30,
        item[:4],
        struct.pack(">i", -1) + item[4:],
        item[:16] + struct.pack(">i", 0x7FFFFFFF) + item[20:],
        item[:16] + struct.pack(">i", -1) + item[20:],
        b"",
        b"\xff" * 200,
        encode_batch([(0, b"later", b"DELAY\x013")]),
    ]

    async def talk() -> None:
        async with RawClient(server.broker_addr) as client:
            before = await client.max_offset(TOPIC, 3)
            for body in broken:
                answer = await client.ask(RequestCode.SEND_BATCH_MESSAGE, send_ext(TOPIC, 3, m="true"), body)
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL, f"{body[:40]!r}: {answer.code}"
                assert "batch" in (answer.remark or "")
            assert await client.max_offset(TOPIC, 3) == before

    asyncio.run(talk())


def test_mistakes_sent_one_way_get_no_answer(server: ServerProcess) -> None:
    async def talk() -> None:
        async with RawClient(server.broker_addr) as client:
            client.write(
                [
                    request(9999, oneway=True),
                    request(RequestCode.SEND_MESSAGE_V2, {"b": "x"}, b"x", oneway=True),
                    request(RequestCode.SEND_MESSAGE_V2, send_ext("Nowhere", 0), b"x", oneway=True),
                    request(
                        RequestCode.SEND_MESSAGE_V2, send_ext(TOPIC, 0), bytes(MAX_BODY + 1), oneway=True
                    ),
                    request(
                        RequestCode.SEND_BATCH_MESSAGE, send_ext(TOPIC, 0, m="true"), b"junk", oneway=True
                    ),
                    request(RequestCode.PULL_MESSAGE, {"topic": "x"}, oneway=True),
                    request(RequestCode.PULL_MESSAGE, pull_ext("Nowhere", 0, 0), oneway=True),
                    request(RequestCode.HEART_BEAT, body=b"{", oneway=True),
                    request(RequestCode.UPDATE_CONSUMER_OFFSET, {}, oneway=True),
                ]
            )
            (number,) = client.write([request(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})])
            async with asyncio.timeout(5):
                first = await client.read()
            assert first.opaque == number, f"a one-way request was answered: {first}"

    asyncio.run(talk())


def test_answers_that_nobody_asked_for_are_dropped(server: ServerProcess) -> None:
    async def talk() -> None:
        async with RawClient(server.broker_addr) as client:
            strays = [
                Command(code, flag=1, ext=send_ext(TOPIC, 0), body=b"x")
                for code in (0, 10, 11, 310, 320, 9999)
            ]
            before = await client.max_offset(TOPIC, 0)
            client.write(strays)
            assert await client.max_offset(TOPIC, 0) == before

    asyncio.run(talk())
