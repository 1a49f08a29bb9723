"""The headers of answers to pulls, as templates: one is made for every page."""

from __future__ import annotations

from typing import Final

from orbitmq.wire.command import LANGUAGE, VERSION

ANSWER: Final = (
    b'{"code":%d,"extFields":{"maxOffset":"%d","minOffset":"%d","nextBeginOffset":"%d",'
    b'"suggestWhichBrokerId":"%d"},"flag":1,"language":"'
    + LANGUAGE.encode()
    + b'","opaque":%d,"remark":"%b",'
    b'"serializeTypeCurrentRPC":"JSON","version":' + str(VERSION).encode() + b"}"
)

FOUND: Final = tuple((ANSWER.replace(b"%b", b"FOUND").replace(b"%d", b"0", 1)).split(b"%d"))
"""The same with SUCCESS, as the texts around its numbers."""

FOUND_PARTS: Final = tuple(
    tuple(text.replace(b'"suggest', b'"pageParts":"%d","suggest' % parts) for text in FOUND)
    for parts in range(8)
)
"""The same again for an answer with so many parts of the records."""
