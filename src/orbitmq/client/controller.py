"""Questions of tools to the controllers of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from orbitmq.client.errors import Unreachable, from_response
from orbitmq.net.controller_line import ControllerLine, NoController
from orbitmq.wire.bodies import decode, encode
from orbitmq.wire.codes import OrbitCode, ResponseCode
from orbitmq.wire.command import Command, request
from orbitmq.wire.controller_bodies import ControllerState, GroupView, HandOver

DEFAULT_TIMEOUT_S = 5.0


class ControllerClient:
    """`addresses` are those of all controllers; whichever is active answers. Use it as an async context manager."""

    def __init__(self, addresses: Sequence[str], timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self._line = ControllerLine(addresses, timeout_s)
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._line.close()

    async def state(self) -> ControllerState:
        """Everything the active controller knows."""
        answer = await self._ask(OrbitCode.CONTROLLER_STATE, b"")
        return decode(ControllerState, answer.body)

    async def hand_over(self, broker: str, to: int | None = None, *, unclean: bool = False) -> GroupView:
        """Has the master of a group give way; returns how the group is now, which is before it has."""
        answer = await self._ask(OrbitCode.HAND_OVER, encode(HandOver(broker=broker, to=to, unclean=unclean)))
        return decode(GroupView, answer.body)

    async def _ask(self, code: int, body: bytes) -> Command:
        try:
            answer = await self._line.ask(request(code, body=body), self._timeout_s)
        except NoController as error:
            raise Unreachable(
                f"no controller answers: {error}",
                hint="check the addresses, that a controller runs there, and that its etcd does",
            ) from error
        if answer.code != ResponseCode.SUCCESS:
            raise from_response(code, answer.code, answer.remark, self._line.last or "the controller")
        return answer
