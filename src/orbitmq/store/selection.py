"""What a filtered pull wants of a queue, and what is known already about the records it meets."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

MOST_VERDICTS: Final = 4096
_TRIAL: Final = 4 * MOST_VERDICTS


class Selection:
    """By the tag hash of the unit, and by looking at the record.

    `names` are the properties that decide whether a record is accepted. With them a verdict is remembered by what these
    properties say, and the accelerator finds it there; values that hardly ever repeat make that a waste, and it ends.
    """

    __slots__ = ("_known", "_new", "accept", "codes", "is_everything", "names", "tag_codes", "verdicts")

    def __init__(
        self,
        tag_codes: Collection[int] | None = None,
        accept: Callable[[bytes], bool] | None = None,
        names: Collection[str] | None = None,
    ) -> None:
        self.tag_codes = tag_codes
        self.accept = accept
        self.is_everything = tag_codes is None and accept is None
        self.codes: bytes | None = None
        if tag_codes is not None:
            self.codes = b"".join(code.to_bytes(8, "big", signed=True) for code in sorted(tag_codes))
        self.names: tuple[bytes, ...] | None = None
        if accept is not None and names is not None:
            self.names = tuple(sorted(name.encode() for name in names))
        self.verdicts: dict[bytes, bool] = {}
        self._known = self._new = 0

    @property
    def is_quick(self) -> bool:
        """Whether the accelerator can do it."""
        return self.accept is None or self.names is not None

    def remember(self, key: bytes, verdict: bool) -> None:
        if len(self.verdicts) >= MOST_VERDICTS:
            self.verdicts.clear()
        self.verdicts[key] = verdict
        self._new += 1

    def count(self, seen: int) -> None:
        """So many units were looked at; the new ones among them are counted by `remember`."""
        self._known += seen
        if self._known > _TRIAL:
            if self._new * 2 > self._known:
                self.names = None
            self._known = self._new = 0


EVERYTHING: Final = Selection()
