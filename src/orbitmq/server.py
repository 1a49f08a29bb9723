"""Running servers: name server and broker in one process or apart, until a signal says stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from orbitmq.config import BrokerConfig, ConfigError, NamesrvConfig, local_ip

log = logging.getLogger("orbitmq.server")

STOP_SECONDS = 10.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class _Server(Protocol):
    async def stop(self) -> None: ...


def run_server(
    broker_config: BrokerConfig, namesrv_config: NamesrvConfig, config_path: str | None = None
) -> int:
    """Everything in one process: what `orbitmq server` does."""

    async def start() -> tuple[list[_Server], str]:
        from orbitmq.broker.broker import Broker
        from orbitmq.namesrv.service import NameServer

        _refuse_unsafe(broker_config)
        broker_config.fill_blanks(host_name=socket.gethostname(), ip="127.0.0.1")
        namesrv_config.fill_blanks()
        namesrv = NameServer(namesrv_config)
        port = await namesrv.start()
        address = f"{_reachable(namesrv_config.listen_host)}:{port}"
        broker_config.namesrv_addr = ";".join([address, *_others(broker_config, address)])
        broker = Broker(broker_config, now_ms, config_path=config_path)
        try:
            await broker.start()
        except BaseException:
            await namesrv.stop()
            raise
        return (
            [broker, namesrv],
            f"OrbitMQ ready  namesrv {address}  broker {broker.address}  data {broker_config.store_path_root_dir}",
        )

    return _run(start)


def run_namesrv(config: NamesrvConfig) -> int:
    async def start() -> tuple[list[_Server], str]:
        from orbitmq.namesrv.service import NameServer

        config.fill_blanks()
        namesrv = NameServer(config)
        port = await namesrv.start()
        return [namesrv], f"OrbitMQ name server ready  namesrv {_reachable(config.listen_host)}:{port}"

    return _run(start)


def run_broker(config: BrokerConfig, config_path: str | None = None) -> int:
    async def start() -> tuple[list[_Server], str]:
        from orbitmq.broker.broker import Broker

        _refuse_unsafe(config)
        config.fill_blanks(host_name=socket.gethostname(), ip=local_ip())
        broker = Broker(config, now_ms, config_path=config_path)
        await broker.start()
        return (
            [broker],
            f"OrbitMQ broker ready  broker {broker.address}  namesrv {config.namesrv_addr}"
            f"  data {config.store_path_root_dir}",
        )

    return _run(start)


def _refuse_unsafe(config: BrokerConfig) -> None:
    """A setting that promises protection must not be taken and do nothing."""
    if config.acl_enable:
        raise ConfigError(
            "aclEnable=true: this version does not check signatures and would let everybody in; "
            "leave it out and protect the port by other means"
        )
    if config.is_slave != (config.broker_id != 0):
        raise ConfigError(
            f"brokerRole={config.broker_role.value} and brokerId={config.broker_id} contradict each other: "
            "a master has brokerId=0, a slave brokerRole=SLAVE and a number above 0"
        )


def _others(config: BrokerConfig, own: str) -> list[str]:
    return [address for address in config.namesrv_addresses if address != own]


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in ("", "0.0.0.0") else host


def _run(start: Callable[[], Awaitable[tuple[list[_Server], str]]]) -> int:
    from orbitmq.store.disk import raise_open_file_limit
    from orbitmq.store.errors import StoreError

    raise_open_file_limit(65_536)
    try:
        _run_loop(_serve(start))
    except (StoreError, OSError) as error:
        print(f"OrbitMQ cannot start: {error}", file=sys.stderr)
        return 1
    return 0


def _run_loop(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: slower, the same otherwise
        asyncio.run(main)
    else:
        uvloop.run(main)


async def _serve(start: Callable[[], Awaitable[tuple[list[_Server], str]]]) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, stop.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
    servers, ready = await start()
    # What exists now stays for good: the collector need not look at it again, and seldom at the rest.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    print(ready, flush=True)
    await stop.wait()
    watchdog = loop.call_later(STOP_SECONDS, _give_up)
    for server in servers:
        await server.stop()
    watchdog.cancel()
    print("OrbitMQ stopped", flush=True)


def _give_up() -> None:
    """The store recovers from this like from a crash; a stop that hangs would be worse."""
    log.critical(
        "the stop took longer than %.0f s and is cut short; the next start will recover the store",
        STOP_SECONDS,
    )
    os._exit(1)
