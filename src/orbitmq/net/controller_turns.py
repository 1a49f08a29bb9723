"""Which controller to ask next: the one that answered last, then the one that was named, then the others. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class ControllerTurns:
    """One question's way over several controllers: each is asked once.

    next_address() -> ask it -> not_active(its remark) or failed(why), until one answers or None comes back.
    """

    def __init__(self, addresses: Sequence[str], last: str | None = None) -> None:
        self._waiting = [last, *addresses] if last else list(addresses)
        self._asked: set[str] = set()
        self.problems: list[str] = []

    def next_address(self) -> str | None:
        while self._waiting:
            address = self._waiting.pop(0)
            if address not in self._asked:
                self._asked.add(address)
                self._now = address
                return address
        return None

    def not_active(self, remark: str | None) -> None:
        self.problems.append(f"{self._now} is not the active one")
        if remark:
            self._waiting.insert(0, remark)

    def failed(self, why: str) -> None:
        self.problems.append(why)
