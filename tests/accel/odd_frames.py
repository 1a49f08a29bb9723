"""Send frames as clients write them, and as nobody should: for tests that compare ways of taking them."""

from __future__ import annotations

import json
from collections.abc import Callable
from struct import Struct

from hypothesis import assume
from hypothesis import strategies as st

from orbitmq.broker.send_shapes import _SPECIAL
from orbitmq.wire.batch import encode_batch
from orbitmq.wire.codes import RequestCode
from orbitmq.wire.command import CODEC_BINARY, encode, request
from tests.support.raw_client import send_ext
from tests.support.send_sides import TOPIC

UNIQUE = "7F0000010DEA63947C6B8C1A2B3C0000"
FRESH = "Fresh"
_PREFIX = Struct(">II")

Pair = tuple[str, str]
"""A name and a value, both as JSON text."""

# --- property texts -----------------------------------------------------------------------------------------

_acted_on = [*sorted(_SPECIAL), "WAIT", "UNIQ_KEY", "KEYS", "TAGS"]
names = st.sampled_from(_acted_on + ["X" + name for name in _acted_on] + [name + "2" for name in _acted_on])
values = st.sampled_from(
    [
        *("true", "false", "f", "True", "", "A", "TagA", "k1", "k1 k2", " k1  k2 ", "   ", "日本", "é", "1"),
        *(
            UNIQUE,
            UNIQUE[::-1],
            UNIQUE[:-1],
            UNIQUE + "0",
            UNIQUE[:-1] + "é",
            "\x01",
            "a\x01b",
            "\x00",
            "\x7f",
        ),
        *("WAIT\x01true", "WAIT\x01false", f"UNIQ_KEY\x01{UNIQUE}", "x" * 600, '"', "\\", "/", "\n\t\b\f\r"),
    ]
)
pairs = st.builds(
    "".join, st.tuples(names | st.just("a"), st.sampled_from(["\x01", "\x01", "\x01", ""]), values)
)
usual_texts = st.sampled_from(
    [
        f"UNIQ_KEY\x01{UNIQUE}\x02WAIT\x01true",
        f"UNIQ_KEY\x01{UNIQUE[::-1]}\x02WAIT\x01true\x02TAGS\x01TagA",
        f"KEYS\x01k1 k2\x02UNIQ_KEY\x01{UNIQUE}\x02WAIT\x01true\x02TAGS\x01TagA\x02",
        f"UNIQ_KEY\x01{UNIQUE}",
        "UNIQ_KEY\x01short",
        "UNIQ_KEY\x01",
        "WAIT\x01true",
        "",
    ]
)
texts = usual_texts | st.builds(
    lambda parts, before, behind: before + "\x02".join(parts) + behind,
    st.lists(pairs, max_size=5),
    st.sampled_from(["", "", "", "\x02"]),
    st.sampled_from(["", "", "\x02", "\x02\x02"]),
)
bodies = st.sampled_from([b"", b"x", b"body", bytes(range(256)), b"y" * 63, b"z" * 64, b"w" * 3000])

# --- JSON headers -------------------------------------------------------------------------------------------


def _ascii(text: str) -> str:
    return json.dumps(text)


def _raw(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    """Every ASCII character as \\u00XX."""
    return '"' + "".join(f"\\u{ord(c):04X}" if ord(c) < 128 else _ascii(c)[1:-1] for c in text) + '"'


def _slashed(text: str) -> str:
    return _ascii(text).replace("/", "\\/")


Style = Callable[[str], str]
styles: st.SearchStrategy[Style] = st.sampled_from([_ascii, _ascii, _ascii, _raw, _escaped, _slashed])
odd_values = st.sampled_from(
    [
        *('"-1"', '"-0"', '"0"', '"1"', '"00"', '"+1"', '" 1"', '"1.0"', '"1e1"', '""', '"null"', '"x"'),
        *('"2147483647"', '"2147483648"', '"-2147483648"', '"9223372036854775807"', '"9223372036854775808"'),
        *(
            '"999999999999999999"',
            '"1000000000000000000"',
            '"-99999999999999999999999"',
            '"\\u0030"',
            '"1795"',
        ),
        *("0", "1", "-1", "-0", "007", "1.5", "1e1", "true", "null", "{}", "[]", '{"a":"b"}', "9" * 30),
        *('"true"', '"false"', '"TRUE"', '"True"', '"1792"', '"3"', '"16"', '"48"'),
        *('"\\x"', '"\\u12"', '"\\u00e9"', '"\\ud800"', '"\\u0000"', '"\x01"', '"é"', '"a', '"\\'),
    ]
)
odd_names = st.sampled_from(
    ['"n"', '"o"', '"z"', '"topic"', '""', '"\\u0061"', "a", '"code"', '"i"', '"version"']
)


def _change(draw: st.DrawFn, rows: list[Pair]) -> None:
    at = draw(st.integers(0, len(rows) - 1))
    match draw(st.sampled_from(["swap", "drop", "value", "value", "value", "twice", "more", "more"])):
        case "swap":
            other = draw(st.integers(0, len(rows) - 1))
            rows[at], rows[other] = rows[other], rows[at]
        case "drop":
            del rows[at]
        case "value":
            rows[at] = (rows[at][0], draw(odd_values))
        case "twice":
            rows.append((rows[at][0], draw(st.just(rows[at][1]) | odd_values)))
        case _:
            rows.insert(at, (draw(odd_names), draw(st.sampled_from(['"x"', "5"]) | odd_values)))


def _joined(rows: list[Pair], gap: str) -> str:
    return "{" + f",{gap}".join(f"{name}:{gap}{value}" for name, value in rows) + "}"


@st.composite
def headers(draw: st.DrawFn, code: int, ext: dict[str, str]) -> bytes:
    style = draw(styles)
    fields = [(f'"{letter}"', style(value)) for letter, value in ext.items()]
    flag = draw(st.sampled_from(["0", "0", "0", "0", "0", "2", "1", "3", "-1", "4"]))
    rows = [
        ('"code"', str(code)),
        ('"extFields"', ""),
        ('"flag"', flag),
        ('"language"', draw(st.sampled_from(['"JAVA"', '"GO"', "0", '"\\u004aAVA"']))),
        ('"opaque"', str(draw(st.integers(-(1 << 31), (1 << 31) - 1)))),
        ('"serializeTypeCurrentRPC"', '"JSON"'),
        ('"version"', "407"),
    ]
    odd = draw(st.sampled_from(["", "", "", "", "ext", "ext", "top", "both"]))
    gap = draw(st.sampled_from(["", "", "", "", "", "", " "]))
    if odd in ("ext", "both"):
        _change(draw, fields)
    rows[1] = ('"extFields"', _joined(fields, gap))
    if odd in ("top", "both"):
        _change(draw, rows)
        # A request with two codes means nothing: the fast way goes by the first, the plain way by the last.
        assume([name for name, _ in rows].count('"code"') < 2)
    behind = draw(st.sampled_from(["", "", "", "", "", "", "", " ", "x"]))
    return (_joined(rows, gap) + behind).encode("utf-8", "surrogatepass")


def framed(header: bytes, body: bytes, header_lie: int = 0) -> bytes:
    return _PREFIX.pack(4 + len(header) + len(body), max(len(header) + header_lie, 0)) + header + body


# --- frames -------------------------------------------------------------------------------------------------

topics = st.sampled_from([TOPIC] * 8 + [FRESH, "SCHEDULE_TOPIC_XXXX", "bad name", "Twin ", "日本", ""])
queue_ids = st.sampled_from(["0", "1", "2", "2", "2", "3", "-1"])
sys_flags = st.sampled_from(["0", "0", "0", "0", "1", "2", "3", "256", "1795", "1796", "16", "8", "-1"])
header_lies = st.sampled_from([0] * 30 + [-1, 1, -1000, 1 << 24, 1 << 30])


@st.composite
def _changes(draw: st.DrawFn) -> dict[str, str]:
    """Letters that official clients fill with something else now and then."""
    return {
        "a": draw(st.sampled_from(["pg", "", "p/g", "組"])),
        "f": draw(sys_flags),
        "g": draw(st.sampled_from(["1700000000000", "0", "-1", "123456789012345678"])),
        "h": draw(st.sampled_from(["0", "0", "7", "-1"])),
        "k": draw(st.sampled_from(["false", "false", "false", "true"])),
        **draw(st.sampled_from([{}, {}, {}, {"n": "broker-a"}, {"l": "16"}, {"j": "3"}])),
    }


@st.composite
def singles(draw: st.DrawFn) -> bytes:
    ext = send_ext(draw(topics), 0, draw(texts), e=draw(queue_ids), **draw(_changes()))
    return framed(draw(headers(RequestCode.SEND_MESSAGE_V2, ext)), draw(bodies), draw(header_lies))


@st.composite
def batch_bodies(draw: st.DrawFn) -> bytes:
    items = draw(st.lists(st.tuples(st.sampled_from([0, 5, -1]), bodies, texts), max_size=4))
    body = encode_batch([(flag, content, text.encode()) for flag, content, text in items])
    match draw(st.sampled_from(["", "", "", "", "", "cut", "more", "lie"])):
        case "cut":
            return body[: -draw(st.sampled_from([1, 2, 7, 23]))]
        case "more":
            return body + draw(st.sampled_from([b"\0", bytes(20), bytes(22), b"\0\0\0\x16" + bytes(18)]))
        case "lie" if body:
            at = draw(st.sampled_from([0, 3, 16, 19])) % len(body)
            return body[:at] + draw(st.sampled_from([b"\xff", b"\x7f", b"\x01"])) + body[at + 1 :]
    return body


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    outer = draw(st.sampled_from(["WAIT\x01true", "", "a\x01b", "\x02", "WAIT\x01true\x02"]) | texts)
    ext = send_ext(draw(topics), 0, outer, e=draw(queue_ids), m="true", **draw(_changes()))
    header = draw(headers(RequestCode.SEND_BATCH_MESSAGE, ext))
    return framed(header, draw(batch_bodies()), draw(header_lies))


@st.composite
def others(draw: st.DrawFn) -> bytes:
    """What comes between sends: another codec, a question whose answer shows what is stored, no request at all."""
    ext = send_ext(TOPIC, 1, draw(usual_texts))
    command = request(RequestCode.SEND_MESSAGE_V2, ext, draw(bodies))
    match draw(st.sampled_from(["binary", "offset", "unknown"])):
        case "binary":
            command.codec = CODEC_BINARY
        case "offset":
            command = request(RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "2"})
        case _:
            command = request(9999)
    command.opaque = draw(st.integers(0, 1 << 30))
    return encode(command)


reads = st.lists(
    st.lists(singles() | singles() | batches() | others(), min_size=1, max_size=8), min_size=1, max_size=3
)
