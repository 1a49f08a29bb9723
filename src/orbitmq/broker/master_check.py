"""Before a slave follows a master: is it the master of this very group, with the same log and about the same time?

The connection for the log carries none of that, in Java's protocol or in ours that speaks it: a slave that follows a
stranger would count as a copy there. So the master is asked as any client may ask it, which Java brokers answer, too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from orbitmq.broker.neighbours import ask, settings_of
from orbitmq.cluster.receive import Receiver
from orbitmq.net.errors import RemotingError
from orbitmq.wire import fastjson
from orbitmq.wire.codes import RequestCode, ResponseCode, response_name
from orbitmq.wire.command import request
from orbitmq.wire.errors import WireError

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker
    from orbitmq.store.follower import LogFollower
    from orbitmq.store.message_store import MessageStore

_UPTIME: Final = re.compile(r"([\d.,]+) days, ([\d.,]+) hours, ([\d.,]+) minutes, ([\d.,]+) seconds")
# A difference of clocks is told in these steps, so that one that stays is told once.
_CLOCK_STEP_S: Final = 10
# Only a person can mend what was refused.
REFUSED_RETRY_S: Final = 5.0


class _NotTold(Exception):
    """The master answered, but neither yes nor no: it is busy, or starting."""


class MasterCheck:
    """`registered` gives the address that the name servers know for the master."""

    def __init__(self, broker: Broker, registered: Callable[[], str | None]) -> None:
        self._broker = broker
        self._registered = registered
        self.refused = False
        """Who answered last was not to be followed."""
        self.foreign = False
        """What this store holds is not the master's log. It stays so when the master goes."""
        self.address: str | None = None
        """Where the master that was found right serves clients."""

    async def problem(self, ha_address: str) -> str:
        """Why the master behind this address cannot be followed; empty when it can."""
        try:
            address, settings = await self._find(ha_address)
            if not address:
                return "it does not say who it is: no broker with that haListenPort answers"
            found = self._stranger(address, settings) or await self._clock_differs(address)
            if not found:
                found = await self._log_differs(address)
                self.foreign = bool(found)
        except RemotingError as error:
            return f"it cannot be asked who it is: {error.what}"
        except _NotTold as error:
            return f"it does not say what its log holds: {error}"
        self.refused = bool(found)
        self.address = None if found else address
        return found

    async def _find(self, ha_address: str) -> tuple[str, dict[str, str]]:
        """The clients' address of the broker whose log is offered at this one: it is registered, or one port below."""
        host, _, ha_port = ha_address.rpartition(":")
        places = [self._registered(), f"{host}:{int(ha_port) - 1}" if ha_port.isdecimal() else None]
        failure: RemotingError | None = None
        for place in dict.fromkeys(place for place in places if place):
            try:
                settings = await settings_of(place)
            except RemotingError as error:
                failure = error
                continue
            if settings.get("haListenPort", ha_port) == ha_port:
                return place, settings
        if failure is not None:
            raise failure
        return "", {}

    def _stranger(self, address: str, settings: dict[str, str]) -> str:
        """What a broker that will not tell its settings is, is not known: it is taken as it is."""
        config = self._broker.config
        mine = config.to_properties()
        for key in ("brokerClusterName", "brokerName"):
            if settings.get(key, mine[key]) != mine[key]:
                return (
                    f"{address} has {key}={settings[key]}, this slave has {key}={mine[key]}: it is the master of "
                    "another group; mend haMasterAddress, namesrvAddr or the names"
                )
        if settings.get("brokerRole") == "SLAVE":
            return f"{address} is a slave itself; mend haMasterAddress, or make one of the two the master"
        key = "mappedFileSizeCommitLog"
        if settings.get(key, mine[key]) != mine[key]:
            return (
                f"{address} has {key}={settings[key]}, this slave has {key}={mine[key]}: the logs would not be the "
                f"same; empty this slave's store and give it {key}={settings[key]}"
            )
        return ""

    async def _clock_differs(self, address: str) -> str:
        most_ms = self._broker.config.max_clock_difference
        if not most_ms:
            return ""
        answer = await ask(address, request(RequestCode.GET_BROKER_RUNTIME_INFO))
        theirs = clock_of(answer.body) if answer.code == ResponseCode.SUCCESS else None
        if theirs is None:
            return ""
        ahead_ms = self._broker.clock() - theirs
        if abs(ahead_ms) <= most_ms + 1000:  # their figure is cut to whole seconds
            return ""
        seconds = max(_CLOCK_STEP_S, round(abs(ahead_ms) / 1000 / _CLOCK_STEP_S) * _CLOCK_STEP_S)
        return (
            f"this machine's clock is about {seconds} s {'ahead of' if ahead_ms > 0 else 'behind'} that of "
            f"{address}: as a master it would give messages wrong times; set both by NTP, or raise "
            f"maxClockDifference (now {most_ms} ms, 0 for any)"
        )

    async def _log_differs(self, address: str) -> str:
        store = self._broker.store
        last = last_record(store)
        if last is None:
            return ""
        offset, record = last
        answer = await ask(address, request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}))
        if answer.code == ResponseCode.SUCCESS and answer.body == record:
            return ""
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR):
            raise _NotTold(f"{response_name(answer.code)} ({answer.code}) {answer.remark or ''}")
        there = "another message" if answer.code == ResponseCode.SUCCESS else "no message"
        return (
            f"this store does not belong to {self._broker.config.broker_name}'s master {address}: that one has "
            f"{there} at log offset {offset}, where the last one here lies. If nothing in it is needed, stop this "
            f"slave and empty {store.settings.root}, so that it begins anew"
        )


class CheckedReceiver(Receiver):
    """Connects to a master only when the check has nothing against it."""

    def __init__(
        self,
        follower: LogFollower,
        master: Callable[[], str | None],
        check: MasterCheck,
        *,
        report_ms: int,
        silence_ms: int,
        ask_where: Callable[[], None],
    ) -> None:
        super().__init__(follower, master, report_ms=report_ms, silence_ms=silence_ms, ask_where=ask_where)
        self._check_master = check

    async def _follow(self, address: str) -> str:
        if self._check_master.refused:
            await asyncio.sleep(REFUSED_RETRY_S)
        return await self._check_master.problem(address) or await super()._follow(address)


def last_record(store: MessageStore) -> tuple[int, bytes] | None:
    """Where the newest message of any queue lies in the log, and its bytes; None for a store without one."""
    newest = -1
    for queue in store.all_queues():
        unit = queue.unit(queue.max_offset - 1) if queue.max_offset > queue.min_offset else None
        if unit is not None:
            newest = max(newest, unit[0])
    record = store.read_record(newest) if newest >= 0 else None
    return None if record is None else (newest, record)


def clock_of(body: bytes) -> int | None:
    """A broker's clock (epoch ms) from its runtime figures: when it was started, and for how long it has been up."""
    try:
        data = fastjson.loads(body)
        table = data["table"] if isinstance(data, dict) else {}
        found = _UPTIME.search(table["runtime"])
        if found is None:
            return None
        days, hours, minutes, seconds = (int(re.sub(r"\D", "", text)) for text in found.groups())
        return int(table["bootTimestamp"]) + (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    except (WireError, KeyError, TypeError, ValueError):
        return None
