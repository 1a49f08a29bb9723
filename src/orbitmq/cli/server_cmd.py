"""The commands that start servers: `server`, `namesrv`, `broker`, `controller`.

Parsed with argparse and nothing else of weight, because the time to the ready line is time a person waits.
Settings come from the configuration file, then from the options, then from `--set`, the later winning.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from orbitmq.config import BrokerConfig, ControllerConfig, NamesrvConfig

FAILED: Final = 1
USAGE: Final = 2

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
MAX_BROKERS: Final = 64

_EPILOG: Final = (
    "The configuration file takes RocketMQ's keys (brokerName=broker-a, flushDiskType=ASYNC_FLUSH, …). "
    "SIGTERM and Ctrl-C stop cleanly. Exit codes: 0 stopped, 1 failed, 2 wrong use."
)


class _Parser(argparse.ArgumentParser):
    """Errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"orbitmq: {message}; try `{self.prog} --help`\n")


def run_command(name: str, args: Sequence[str]) -> int:
    """Starts a server and returns its exit code when it has stopped."""
    try:
        return _COMMANDS[name](args)
    except SystemExit as stop:  # argparse after --help or an error it has already printed
        return stop.code if isinstance(stop.code, int) else FAILED
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        return _report(error)


def parse_server(args: Sequence[str]) -> tuple[BrokerConfig, NamesrvConfig, str | None, list[str]]:
    """Both configurations of `orbitmq server`, their file, and warnings about settings without effect."""
    broker, namesrv, path, warnings, _, _ = _parse_server(args)
    return broker, namesrv, path, warnings


def _parse_server(
    args: Sequence[str],
) -> tuple[BrokerConfig, NamesrvConfig, str | None, list[str], int, dict[str, str]]:
    """The same, the number of brokers, and all settings as they were given."""
    parser = _parser("server", "Start name server and broker in one process.")
    _data_option(parser)
    _port_option(parser, "--namesrv-port", "port of the name server (default 9876)")
    _port_option(parser, "--port", "port of the broker (default 10911)")
    _port_option(parser, "--console-port", "port of the web page, 0 for none (default 8080)")
    parser.add_argument(
        "--brokers",
        type=_count,
        default=1,
        metavar="N",
        help="brokers, one per core: the others run in processes of their own, with data in DIR/broker-2 and so on, "
        "at ports 10, 20, … above",
    )
    _config_options(parser)
    options = parser.parse_args(args)

    from orbitmq.config import BrokerConfig, NamesrvConfig, server_configs, warnings_for

    given = _settings(
        options, storePathRootDir=options.data, listenPort=options.port, consolePort=options.console_port
    )
    broker, namesrv, _ = server_configs(given)
    if options.namesrv_port is not None:
        namesrv.listen_port = options.namesrv_port
    _keep_beside(namesrv, broker.store_path_root_dir, given)
    warnings = warnings_for(given, BrokerConfig, NamesrvConfig)
    return broker, namesrv, options.config, warnings, options.brokers, given


def parse_namesrv(args: Sequence[str]) -> tuple[NamesrvConfig, list[str]]:
    parser = _parser("namesrv", "Start a name server.")
    _port_option(parser, "--port", "port to listen on (default 9876)")
    parser.add_argument("--data", metavar="DIR", help="directory of its key values and changed settings")
    parser.add_argument("--controller", action="store_true", help="run a controller in this process, too")
    _port_option(parser, "--controller-port", "port of that controller (default 9878)")
    _controller_options(parser)
    _config_options(parser)
    options = parser.parse_args(args)

    from orbitmq.config import NamesrvConfig, warnings_for

    given = _settings(
        options,
        listenPort=options.port,
        enableControllerInNamesrv="true" if options.controller else None,
        controllerPort=options.controller_port,
        **_controller_settings(options),
    )
    config, _ = NamesrvConfig.from_properties(given)
    if options.data:
        _keep_beside(config, options.data, given)
    return config, warnings_for(given, NamesrvConfig)


def parse_controller(args: Sequence[str]) -> tuple[ControllerConfig, list[str]]:
    parser = _parser("controller", "Start a controller: it decides who is master of each broker group.")
    parser.epilog = (
        "`orbitmq controller show ADDR` tells what it knows, `orbitmq controller hand-over BROKER ADDR` has another "
        f"replica become master. {_EPILOG}"
    )
    _port_option(parser, "--port", "port to listen on (default 9878)")
    parser.add_argument(
        "--data", metavar="DIR", help="directory of what it must not forget (default ~/controller)"
    )
    _controller_options(parser)
    _config_options(parser)
    options = parser.parse_args(args)

    from orbitmq.config import ControllerConfig, warnings_for

    given = _settings(
        options,
        listenPort=options.port,
        controllerStorePath=options.data,
        **_controller_settings(options),
    )
    config, _ = ControllerConfig.from_properties(given)
    return config, warnings_for(given, ControllerConfig)


def parse_broker(args: Sequence[str]) -> tuple[BrokerConfig, str | None, list[str]]:
    parser = _parser("broker", "Start a broker.")
    parser.add_argument(
        "-n",
        "--namesrv",
        metavar="ADDR[;ADDR]",
        help="name servers to register with "
        f"(default: the file's namesrvAddr, the environment's NAMESRV_ADDR, or {DEFAULT_NAMESRV})",
    )
    _data_option(parser)
    _port_option(parser, "--port", "port to listen on (default 10911)")
    _config_options(parser)
    options = parser.parse_args(args)

    from orbitmq.config import BrokerConfig, warnings_for

    given = _settings(
        options, namesrvAddr=options.namesrv, storePathRootDir=options.data, listenPort=options.port
    )
    config, _ = BrokerConfig.from_properties(given)
    if not config.namesrv_addr:
        config.namesrv_addr = (
            os.environ.get("NAMESRV_ADDR") or os.environ.get("ORBITMQ_NAMESRV") or DEFAULT_NAMESRV
        )
    return config, options.config, warnings_for(given, BrokerConfig)


def _server(args: Sequence[str]) -> int:
    broker, namesrv, path, warnings, brokers, given = _parse_server(args)
    _warn(warnings)
    from orbitmq.server import run_server

    if brokers == 1:
        return run_server(broker, namesrv, path)
    from orbitmq.local_cluster import further_brokers

    any_port = not broker.listen_port
    return run_server(
        broker,
        namesrv,
        path,
        lambda first: further_brokers(
            brokers,
            given,
            name=first.broker_name,
            ip=first.broker_ip1,
            port=0 if any_port else first.listen_port,
            data=first.store_path_root_dir,
            namesrv=first.namesrv_addr,
        ),
    )


def _namesrv(args: Sequence[str]) -> int:
    config, warnings = parse_namesrv(args)
    _warn(warnings)
    from orbitmq.server import run_namesrv

    return run_namesrv(config)


def _controller(args: Sequence[str]) -> int:
    config, warnings = parse_controller(args)
    _warn(warnings)
    from orbitmq.server import run_controller

    return run_controller(config)


def _broker(args: Sequence[str]) -> int:
    config, path, warnings = parse_broker(args)
    _warn(warnings)
    from orbitmq.server import run_broker

    return run_broker(config, path)


_COMMANDS: Final = {"server": _server, "namesrv": _namesrv, "broker": _broker, "controller": _controller}


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    return _Parser(prog=f"orbitmq {name}", description=description, epilog=_EPILOG, allow_abbrev=False)


def _data_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DIR", help="the store's directory (default ~/store)")


def _port_option(parser: argparse.ArgumentParser, name: str, help_text: str) -> None:
    parser.add_argument(name, type=_port, metavar="PORT", help=help_text)


def _controller_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--etcd",
        metavar="ADDR[;ADDR]",
        help="etcd nodes: the memory of several controllers, instead of a file",
    )
    parser.add_argument(
        "--lease-ms",
        type=int,
        metavar="MS",
        help="how long a master serves without hearing from it (default 2000)",
    )
    parser.add_argument(
        "--unclean",
        action="store_true",
        help="elect a replica that lacks acknowledged messages rather than none; they are lost",
    )


def _controller_settings(options: argparse.Namespace) -> dict[str, str | int | None]:
    return {
        "controllerEtcd": options.etcd,
        "controllerLeaseMs": options.lease_ms,
        "enableElectUncleanMaster": "true" if options.unclean else None,
    }


def _config_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", help="configuration file with RocketMQ's keys")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one setting; can be repeated"
    )


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_BROKERS:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 1 to {MAX_BROKERS}")
    return int(text)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port number from 0 to 65535")
    return int(text)


def _settings(options: argparse.Namespace, **from_options: str | int | None) -> dict[str, str]:
    from orbitmq.config import parse_assignments, read_properties

    settings = read_properties(options.config) if options.config else {}
    settings.update({key: str(value) for key, value in from_options.items() if value is not None})
    settings.update(parse_assignments(options.set))
    return settings


def _keep_beside(namesrv: NamesrvConfig, directory: str, given: Mapping[str, str]) -> None:
    """Puts the name server's files below the data directory, so that two on one host do not share any."""
    folder = os.path.join(os.path.expanduser(directory), "namesrv")
    if "kvConfigPath" not in given:
        namesrv.kv_config_path = os.path.join(folder, "kvConfig.json")
    if "configStorePath" not in given:
        namesrv.config_store_path = os.path.join(folder, "namesrv.properties")
    if "controllerStorePath" not in given:
        namesrv.controller_store_path = os.path.join(os.path.expanduser(directory), "controller")


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"orbitmq: warning: {warning}", file=sys.stderr, flush=True)


def _report(error: Exception) -> int:
    """Errors a person can mend, in one line; anything else is a defect and keeps its traceback."""
    from orbitmq.config import ConfigError

    exit_code = FAILED
    if isinstance(error, ConfigError):
        exit_code = USAGE
    elif not (isinstance(error, OSError) or hasattr(error, "hint")):
        raise error
    print(f"orbitmq: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    return exit_code
