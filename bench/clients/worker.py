"""One Python client in a process of its own: `python -m bench.clients.worker NAME ADDR BROKER_PID LOAD ROWS`.

One JSON line per figure. With `--profile FILE` everything it does is profiled, for looking and not for the record.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json

import msgspec
import uvloop

from bench.clients import kafka_client, nats_client, orbit_client
from bench.clients.load import Load

CLIENTS = {module.NAME: module for module in (orbit_client, kafka_client, nats_client)}


async def measure(args: argparse.Namespace) -> None:
    load = msgspec.json.decode(args.load, type=Load)
    figures = CLIENTS[args.client].figures(args.addr, args.broker_pid, load, frozenset(args.rows.split(",")))
    async for figure in figures:
        print(json.dumps(figure.as_json()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", choices=sorted(CLIENTS))
    parser.add_argument("addr")
    parser.add_argument("broker_pid", type=int)
    parser.add_argument("load", help="a Load as JSON")
    parser.add_argument("rows", help="names of rows, separated by commas")
    parser.add_argument("--profile", help="write cProfile's statistics here")
    args = parser.parse_args()
    profile = cProfile.Profile() if args.profile else None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if profile is None:
            runner.run(measure(args))
        else:
            profile.runcall(runner.run, measure(args))
            profile.dump_stats(args.profile)


if __name__ == "__main__":
    main()
