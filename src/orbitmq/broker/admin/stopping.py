"""STOP_BROKER: a tool asks for the end of this process, or for a fresh start of it.

The body is a JSON object; `restart` says whether the process starts over with the arguments it has, under the same
process id. The answer is sent before anything ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from orbitmq.broker.admin.common import json_reply, refused
from orbitmq.broker.admin.context import Broker, Handler
from orbitmq.net.connection import Connection
from orbitmq.wire import fastjson
from orbitmq.wire.codes import OrbitCode
from orbitmq.wire.command import Command

log = logging.getLogger("orbitmq.broker")

# The answer has to be on its way before its connection is closed.
ANSWER_FIRST_S: Final = 0.1


def stop_broker(broker: Broker, conn: Connection, cmd: Command) -> Command:
    wanted = fastjson.loads(cmd.body) if cmd.body else {}
    restart = wanted.get("restart", False) if isinstance(wanted, Mapping) else None
    if not isinstance(restart, bool):
        raise refused('the body of STOP_BROKER is not understood; send {"restart":true} or {"restart":false}')
    stop = broker.on_stop_request
    if stop is None:
        raise refused("this broker runs inside another program, which alone can stop it")
    log.warning("%s asked this broker to %s", conn.peer, "start over" if restart else "stop")
    asyncio.get_running_loop().call_later(ANSWER_FIRST_S, stop, restart)
    return json_reply(cmd, {"bootTimestamp": broker.stats.started_ms, "restart": restart})


HANDLERS: Final[dict[int, Handler]] = {OrbitCode.STOP_BROKER: stop_broker}
