"""The commands that start servers: `server`, `namesrv`, `broker`.

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
    from orbitmq.config import BrokerConfig, NamesrvConfig

FAILED: Final = 1
USAGE: Final = 2

DEFAULT_NAMESRV: Final = "127.0.0.1:9876"

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
    parser = _parser("server", "Start name server and broker in one process.")
    _data_option(parser)
    _port_option(parser, "--namesrv-port", "port of the name server (default 9876)")
    _port_option(parser, "--port", "port of the broker (default 10911)")
    _port_option(parser, "--console-port", "port of the web page, 0 for none (default 8080)")
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
    return broker, namesrv, options.config, warnings_for(given, BrokerConfig, NamesrvConfig)


def parse_namesrv(args: Sequence[str]) -> tuple[NamesrvConfig, list[str]]:
    parser = _parser("namesrv", "Start a name server.")
    _port_option(parser, "--port", "port to listen on (default 9876)")
    parser.add_argument("--data", metavar="DIR", help="directory of its key values and changed settings")
    _config_options(parser)
    options = parser.parse_args(args)

    from orbitmq.config import NamesrvConfig, warnings_for

    given = _settings(options, listenPort=options.port)
    config, _ = NamesrvConfig.from_properties(given)
    if options.data:
        _keep_beside(config, options.data, given)
    return config, warnings_for(given, NamesrvConfig)


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
    broker, namesrv, path, warnings = parse_server(args)
    _warn(warnings)
    from orbitmq.server import run_server

    return run_server(broker, namesrv, path)


def _namesrv(args: Sequence[str]) -> int:
    config, warnings = parse_namesrv(args)
    _warn(warnings)
    from orbitmq.server import run_namesrv

    return run_namesrv(config)


def _broker(args: Sequence[str]) -> int:
    config, path, warnings = parse_broker(args)
    _warn(warnings)
    from orbitmq.server import run_broker

    return run_broker(config, path)


_COMMANDS: Final = {"server": _server, "namesrv": _namesrv, "broker": _broker}


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    return _Parser(prog=f"orbitmq {name}", description=description, epilog=_EPILOG, allow_abbrev=False)


def _data_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="DIR", help="the store's directory (default ~/store)")


def _port_option(parser: argparse.ArgumentParser, name: str, help_text: str) -> None:
    parser.add_argument(name, type=_port, metavar="PORT", help=help_text)


def _config_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", help="configuration file with RocketMQ's keys")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="one setting; can be repeated"
    )


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
