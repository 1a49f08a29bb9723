"""One question to whichever controller is the active one."""

from __future__ import annotations

from collections.abc import Sequence

from orbitmq.net.channel import ChannelPool
from orbitmq.net.controller_turns import ControllerTurns
from orbitmq.net.errors import RemotingError
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.command import Command


class NoController(Exception):
    """None of the controllers is active, or none can be reached; the text says what each of them answered."""


class ControllerLine:
    """Stays with the controller that answered last; asks the others, in turn, when it does not any more."""

    def __init__(self, addresses: Sequence[str], connect_timeout_s: float) -> None:
        self._addresses = list(addresses)
        self.last: str | None = None
        """The one that answered last."""
        self._pool = ChannelPool(connect_timeout_s=connect_timeout_s)

    async def ask(self, command: Command, timeout_s: float) -> Command:
        """The active controller's answer, whatever its code. `timeout_s` is for each controller that is asked."""
        turns = ControllerTurns(self._addresses, self.last)
        while (address := turns.next_address()) is not None:
            try:
                channel = await self._pool.get(address)
                answer = await channel.request(command, timeout_s)
            except RemotingError as error:
                # One that accepted the connection and is silent may be frozen: the next question opens a new one.
                self._pool.drop(address)
                turns.failed(error.what)
                continue
            if answer.code != ResponseCode.NOT_ACTIVE_CONTROLLER:
                self.last = address
                return answer
            turns.not_active(answer.remark)
        raise NoController("; ".join(turns.problems))

    async def close(self) -> None:
        await self._pool.close()
