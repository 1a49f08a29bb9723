"""Running servers: name server and broker in one process or apart, until a signal says stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from orbitmq.allocation import keep_large_blocks
from orbitmq.child_processes import STOP_AT_EOF, ChildFailed, ChildProcesses, Spec
from orbitmq.config import BrokerConfig, ConfigError, ControllerConfig, NamesrvConfig, local_ip

log = logging.getLogger("orbitmq.server")

STOP_SECONDS = 10.0
# So long a start that is under way may go on when somebody says stop: a stop in order needs a whole server.
START_SECONDS = 3.0

# Options for the next start of this process: a port that the system chose stays the same.
_chosen_ports: list[str] = []


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class _Server(Protocol):
    async def stop(self) -> None: ...


@runtime_checkable
class _CanAskForStop(Protocol):
    """A server that gets requests to end this process; the argument tells whether it is to start over."""

    on_stop_request: Callable[[bool], None] | None


def run_server(
    broker_config: BrokerConfig,
    namesrv_config: NamesrvConfig,
    config_path: str | None = None,
    further: Callable[[BrokerConfig], Sequence[Spec]] | None = None,
) -> int:
    """Everything in one process: what `orbitmq server` does. `further` tells which brokers run beside it in others."""

    async def start() -> tuple[list[_Server], str]:
        from orbitmq.broker.broker import Broker
        from orbitmq.namesrv.service import NameServer

        _refuse_unsafe(broker_config)
        if namesrv_config.enable_controller_in_namesrv:
            raise ConfigError(
                "enableControllerInNamesrv=true: a server with everything in one process has nobody to fail over to; "
                "use it with `orbitmq namesrv`"
            )
        broker_config.fill_blanks(host_name=socket.gethostname(), ip="127.0.0.1")
        namesrv_config.fill_blanks()
        any_ports = {
            "--namesrv-port": not namesrv_config.listen_port,
            "--port": not broker_config.listen_port,
        }
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
        ports = {"--namesrv-port": port, "--port": broker_config.listen_port}
        for option, chosen_by_system in any_ports.items():
            _chosen_ports.extend([option, str(ports[option])] if chosen_by_system else [])
        servers: list[_Server] = [broker, namesrv]
        brokers = broker.address
        if further is not None:
            try:
                children, addresses = await _start_further(further(broker_config), broker_config)
            except BaseException:
                await broker.stop()
                await namesrv.stop()
                raise
            servers.insert(0, children)
            brokers = ";".join([brokers, *addresses])
        return (
            servers,
            f"OrbitMQ ready  namesrv {address}  broker {brokers}  data {broker_config.store_path_root_dir}",
        )

    return _run(start)


async def _start_further(specs: Sequence[Spec], config: BrokerConfig) -> tuple[_Server, list[str]]:
    """The brokers in processes of their own, and their addresses from what they say when they are ready."""
    children = ChildProcesses(Path(config.store_path_root_dir), _tell)
    started = await children.start(specs)
    children.watch()
    return children, [child.ready_line.split("  broker ")[1].split()[0] for child in started]


def _tell(text: str) -> None:
    print(f"OrbitMQ: {text}", file=sys.stderr, flush=True)


def run_namesrv(config: NamesrvConfig) -> int:
    async def start() -> tuple[list[_Server], str]:
        from orbitmq.namesrv.service import NameServer

        config.fill_blanks()
        servers: list[_Server] = []
        controller = ""
        if config.enable_controller_in_namesrv:
            embedded, controller = await _start_controller(config.of_controller())
            servers.append(embedded)
        namesrv = NameServer(config)
        try:
            port = await namesrv.start()
        except BaseException:
            for server in servers:
                await server.stop()
            raise
        ready = f"OrbitMQ name server ready  namesrv {_reachable(config.listen_host)}:{port}{controller}"
        return [*servers, namesrv], ready

    return _run(start)


def run_controller(config: ControllerConfig) -> int:
    async def start() -> tuple[list[_Server], str]:
        controller, ready = await _start_controller(config)
        return [controller], f"OrbitMQ controller ready{ready}"

    return _run(start)


async def _start_controller(config: ControllerConfig) -> tuple[_Server, str]:
    """The running controller, and what there is to say about it."""
    from orbitmq.cluster.controller.engines import EngineFailed, StateEngine
    from orbitmq.cluster.controller.engines.etcd import EtcdEngine
    from orbitmq.cluster.controller.engines.sqlite import SqliteEngine
    from orbitmq.cluster.controller.machine import Rules
    from orbitmq.cluster.controller.service import Controller
    from orbitmq.cluster.controller.state import StateDamaged

    config.fill_blanks()
    host = config.controller_address or _reachable(config.listen_host)
    engine: StateEngine
    if config.etcd_addresses:
        if not config.controller_address and host == "127.0.0.1":
            host = local_ip()  # other controllers will name it to brokers anywhere
        engine = EtcdEngine(
            config.etcd_addresses, config.controller_etcd_prefix, config.controller_lease_ms, _boot_clock_ms
        )
    else:
        os.makedirs(config.controller_store_path, exist_ok=True)
        engine = SqliteEngine(os.path.join(config.controller_store_path, "controller.db"))
    rules = Rules(
        lease_ms=config.controller_lease_ms,
        unclean=config.enable_elect_unclean_master,
        max_clock_gap_ms=config.controller_max_clock_gap,
    )
    controller = Controller(engine, rules, _boot_clock_ms, now_ms)
    try:
        address = await controller.start(config.listen_host, config.listen_port, host)
    except (EngineFailed, StateDamaged) as error:
        raise OSError(str(error)) from error
    port = address.rpartition(":")[2]
    return controller, (
        f"  controller {_reachable(config.listen_host)}:{port}  engine {engine.name}"
        f"  lease {rules.lease_ms} ms  {'active' if controller.active else 'standby'}"
    )


def _boot_clock_ms() -> float:
    return boot_clock_s() * 1000


def run_broker(config: BrokerConfig, config_path: str | None = None) -> int:
    async def start() -> tuple[list[_Server], str]:
        from orbitmq.broker.broker import Broker

        _refuse_unsafe(config)
        config.fill_blanks(host_name=socket.gethostname(), ip=local_ip())
        if config.enable_controller_mode:
            return await _controlled_broker(config, config_path)
        any_port = not config.listen_port
        broker = Broker(config, now_ms, config_path=config_path)
        await broker.start()
        if any_port:
            _chosen_ports.extend(["--port", str(config.listen_port)])
        return (
            [broker],
            f"OrbitMQ broker ready  broker {broker.address}  namesrv {config.namesrv_addr}"
            f"  data {config.store_path_root_dir}",
        )

    return _run(start)


async def _controlled_broker(config: BrokerConfig, config_path: str | None) -> tuple[list[_Server], str]:
    from orbitmq.broker.supervisor import Supervisor

    supervisor = Supervisor(
        config,
        now_ms,
        boot_clock_s=boot_clock_s,
        new_token=lambda: secrets.token_hex(8),
        give_up=_end_process,
        config_path=config_path,
    )
    await supervisor.start()
    return (
        [supervisor],
        f"OrbitMQ broker ready  broker {config.broker_ip1}:{config.listen_port}  namesrv {config.namesrv_addr}"
        f"  data {config.store_path_root_dir}  role {supervisor.role}",
    )


def boot_clock_s() -> float:
    """Never jumps, and goes on while the machine sleeps, where the system has such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _end_process(reason: str) -> None:
    """As an operator would: whoever looks after this process sees it stop, and why."""
    log.critical("this broker cannot go on: %s", reason)
    signal.raise_signal(signal.SIGTERM)


def _refuse_unsafe(config: BrokerConfig) -> None:
    """A setting that promises protection must not be taken and do nothing."""
    if config.acl_enable:
        raise ConfigError(
            "aclEnable=true: this version does not check signatures and would let everybody in; "
            "leave it out and protect the port by other means"
        )
    if config.enable_controller_mode:
        if not config.controller_addresses:
            raise ConfigError("enableControllerMode=true needs controllerAddr=HOST:PORT[;HOST:PORT]")
        if config.is_slave or config.broker_id:
            raise ConfigError(
                "with enableControllerMode=true the controller decides who is master: leave brokerId out, and give "
                "brokerRole=SYNC_MASTER or ASYNC_MASTER for how this broker replicates when it is"
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
    keep_large_blocks()
    try:
        start_over = _run_loop(_serve(start))
    except (StoreError, OSError, ChildFailed) as error:
        print(f"OrbitMQ cannot start: {error}", file=sys.stderr)
        return 1
    if start_over:
        # The same process id, the same arguments: whoever watches this process need not know.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], *_chosen_ports])
    return 0


def _run_loop(main: Coroutine[Any, Any, bool]) -> bool:
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: slower, the same otherwise
        return asyncio.run(main)
    return bool(uvloop.run(main))


async def _serve(start: Callable[[], Awaitable[tuple[list[_Server], str]]]) -> bool:
    """Until somebody says stop; whether a fresh start is to follow."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    start_over = False

    def end(again: bool) -> None:
        nonlocal start_over
        start_over = again
        stop.set()

    if os.environ.get(STOP_AT_EOF):
        threading.Thread(target=_wait_for_eof, args=(loop, stop), name="stdin", daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, stop.set)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
    starting = asyncio.ensure_future(start())
    waiting = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set() and not (await asyncio.wait({starting}, timeout=START_SECONDS))[0]:
        # It waits for somebody who does not answer: nothing was served, and nothing is lost.
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        print("OrbitMQ stopped before it was ready", flush=True)
        return False
    waiting.cancel()
    servers, ready = starting.result()
    for server in servers:
        if isinstance(server, _CanAskForStop):
            server.on_stop_request = end
    # What exists now stays for good: the collector need not look at it again, and seldom at the rest.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    print(ready, flush=True)
    await stop.wait()
    for server in servers:
        # Other processes have time limits of their own.
        watchdog = loop.call_later(STOP_SECONDS, _give_up) if not isinstance(server, ChildProcesses) else None
        await server.stop()
        if watchdog is not None:
            watchdog.cancel()
    print("OrbitMQ starts over" if start_over else "OrbitMQ stopped", flush=True)
    return start_over


def _wait_for_eof(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Standard input is a pipe from whoever started this process; it ends when that one does."""
    with contextlib.suppress(OSError):  # closed already
        while os.read(0, 4096):
            continue
    with contextlib.suppress(RuntimeError):  # the loop is closed: the stop is under way
        loop.call_soon_threadsafe(stop.set)


def _give_up() -> None:
    """The store recovers from this like from a crash; a stop that hangs would be worse."""
    log.critical(
        "the stop took longer than %.0f s and is cut short; the next start will recover the store",
        STOP_SECONDS,
    )
    os._exit(1)
