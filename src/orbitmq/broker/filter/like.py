"""LIKE: % stands for any run of characters, _ for exactly one. Time is linear in the value, whatever the
pattern.

Patterns without _ are cut at % and the pieces looked for from left to right; taking each at its first place
is right, because a later place never leaves more room for the rest. With _ all places are followed at once,
one bit each.
"""

from __future__ import annotations

from collections.abc import Callable

# A pattern as a row of single characters, ANY_ONE and ANY_RUN.
ANY_ONE, ANY_RUN = "_", "%"
Item = tuple[str, bool]
"""(character, whether it stands for itself)."""

Matcher = Callable[[bytes], bool]


def pattern_problem(pattern: str, escape: str | None) -> str:
    """Why a pattern has no meaning; empty when it has one."""
    position = 0
    while escape is not None and (position := pattern.find(escape, position)) >= 0:
        follower = pattern[position + 1 : position + 2]
        if not follower or follower not in (ANY_ONE, ANY_RUN, escape):
            return f"the escape character {escape!r} must be followed by %, _ or itself"
        position += 2
    return ""


def items(pattern: str, escape: str | None) -> list[Item]:
    found: list[Item] = []
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if char == escape:
            position += 1
            found.append((pattern[position], True))
        else:
            found.append((char, char not in (ANY_ONE, ANY_RUN)))
        position += 1
    return found


def like_matcher(pattern: str, escape: str | None = None) -> Matcher:
    """A function that tells whether a UTF-8 value matches."""
    row = items(pattern, escape)
    if (ANY_ONE, False) in row:
        return _bits_matcher(row)
    pieces = [""]
    for char, literal in row:
        if literal:
            pieces[-1] += char
        else:
            pieces.append("")
    return _pieces_matcher([piece.encode("utf-8", "replace") for piece in pieces])


def _pieces_matcher(pieces: list[bytes]) -> Matcher:
    first, *middle = pieces
    if not middle:
        return first.__eq__
    last = middle.pop()
    middle = [piece for piece in middle if piece]
    at_least = len(first) + len(last)

    def between(value: bytes) -> bool:
        end = len(value) - len(last)
        if len(value) < at_least or not value.startswith(first) or not value.endswith(last):
            return False
        position = len(first)
        for piece in middle:
            position = value.find(piece, position, end)
            if position < 0:
                return False
            position += len(piece)
        return True

    return between


def _bits_matcher(row: list[Item]) -> Matcher:
    """Bit i of the state: the first i single characters of the pattern are behind us. A run keeps its bit
    alive.
    """
    singles = [item for item in row if item != (ANY_RUN, False)]
    runs = place = 0
    for item in row:
        if item == (ANY_RUN, False):
            runs |= 1 << place
        else:
            place += 1
    any_one = sum(1 << i for i, item in enumerate(singles) if item == (ANY_ONE, False))
    steps: dict[str, int] = {}
    for i, (char, literal) in enumerate(singles):
        if literal:
            steps[char] = steps.get(char, any_one) | 1 << i
    goal = 1 << len(singles)
    step_of = steps.get

    def follow(value: bytes) -> bool:
        state = 1
        for char in value.decode("utf-8", "replace"):
            state = (state & step_of(char, any_one)) << 1 | state & runs
            if not state:
                return False
        return bool(state & goal)

    return follow
