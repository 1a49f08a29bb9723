"""A state engine without any memory beyond the process, for tests and simulations."""

from __future__ import annotations

from orbitmq.cluster.controller.engines import Hold
from orbitmq.cluster.controller.state import GroupState, Stored, decode_state, encode_state


class MemoryEngine:
    """Holds encoded bytes, so that whatever cannot be stored is noticed here, too."""

    name = "memory"

    def __init__(self) -> None:
        self._rows: dict[str, tuple[bytes, int]] = {}

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def hold(self, address: str) -> Hold:
        return Hold(True, float("inf"), address)

    async def load_all(self) -> dict[str, Stored]:
        return {
            key: Stored(decode_state(key, data), revision) for key, (data, revision) in self._rows.items()
        }

    async def load(self, key: str) -> Stored | None:
        return (await self.load_all()).get(key)

    async def swap(self, key: str, state: GroupState, expected: int | None) -> int | None:
        _, revision = self._rows.get(key, (b"", None))
        if revision != expected:
            return None
        self._rows[key] = (encode_state(state), (expected or 0) + 1)
        return self._rows[key][1]
