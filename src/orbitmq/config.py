"""The typed configuration of broker, name server and controller, read from RocketMQ's own keys.

In: Java properties text (a `broker.conf`, `--set` options, a configuration request).
Out: `BrokerConfig`, `NamesrvConfig` and `ControllerConfig`.

Every value is checked on the way in; what is wrong is refused by name, what is unknown or has no effect
here is reported by `warnings_for`. Imports nothing of ours but its own parts.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from orbitmq.config_controller import ControllerKeys, ControllerRules
from orbitmq.config_keys import INERT_ELSEWHERE, BrokerKeys, NamesrvKeys
from orbitmq.config_model import (
    BrokerRole,
    ConfigError,
    FlushDiskType,
    Mismatch,
    Settings,
    delay_levels_ms,
    keys_by_name,
    keys_of,
)
from orbitmq.properties_text import PropertiesError, dump_properties, load_properties, merge_properties

__all__ = [
    "BrokerConfig",
    "BrokerRole",
    "ConfigError",
    "ControllerConfig",
    "FlushDiskType",
    "Mismatch",
    "NamesrvConfig",
    "PropertiesError",
    "dump_properties",
    "load_properties",
    "local_ip",
    "parse_assignments",
    "read_properties",
    "save_changes",
    "server_configs",
    "warnings_for",
]

# A name server inside `orbitmq server` shares the broker's file; there, these name the broker's own values.
BROKER_ONLY_IN_SERVER = ("listenPort",)


class BrokerConfig(BrokerKeys, Settings):
    """Settings of a broker. Attributes are RocketMQ's keys in snake_case; `config_keys` lists them all."""

    __slots__ = ()

    def fill_blanks(self, *, ip: str = "", host_name: str = "") -> None:
        """Gives what was left blank its value. `ip` is the address to tell clients, by default this host's."""
        self.broker_name = self.broker_name or host_name or socket.gethostname()
        self.broker_ip1 = self.broker_ip1 or ip or local_ip()
        self.broker_ip2 = self.broker_ip2 or self.broker_ip1
        self.ha_listen_port = self.ha_listen_port or (self.listen_port + 1 if self.listen_port else 0)
        self.store_path_root_dir = os.path.expanduser(self.store_path_root_dir)
        self.store_path_commit_log = os.path.expanduser(
            self.store_path_commit_log or os.path.join(self.store_path_root_dir, "commitlog")
        )

    @property
    def sync_flush(self) -> bool:
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH

    @property
    def is_slave(self) -> bool:
        return self.broker_role is BrokerRole.SLAVE

    @property
    def namesrv_addresses(self) -> list[str]:
        return [address.strip() for address in self.namesrv_addr.split(";") if address.strip()]

    @property
    def controller_addresses(self) -> list[str]:
        return [address.strip() for address in self.controller_addr.split(";") if address.strip()]

    def delay_levels_ms(self) -> tuple[int, ...]:
        """Milliseconds by level; level 1 is at index 0."""
        return delay_levels_ms(self.message_delay_level)

    def delete_hours(self) -> frozenset[int]:
        return frozenset(int(hour) for hour in self.delete_when.split(";"))


class NamesrvConfig(NamesrvKeys, Settings):
    """Settings of a name server."""

    __slots__ = ()

    def fill_blanks(self) -> None:
        self.kv_config_path = os.path.expanduser(self.kv_config_path)
        self.config_store_path = os.path.expanduser(self.config_store_path)
        self.controller_store_path = os.path.expanduser(self.controller_store_path)

    def of_controller(self) -> ControllerConfig:
        """Those of the controller in the name server's process."""
        shared = {key.attribute: getattr(self, key.attribute) for key in keys_of(ControllerRules)}
        return ControllerConfig(**shared, listen_host=self.listen_host, listen_port=self.controller_port)


class ControllerConfig(ControllerKeys, Settings):
    """Settings of a controller."""

    __slots__ = ()

    def fill_blanks(self) -> None:
        self.controller_store_path = os.path.expanduser(self.controller_store_path)

    @property
    def etcd_addresses(self) -> list[str]:
        return [address.strip() for address in self.controller_etcd.split(";") if address.strip()]


def server_configs(properties: Mapping[str, str]) -> tuple[BrokerConfig, NamesrvConfig, list[str]]:
    """Both configurations of `orbitmq server` from one set of properties, and the keys neither knows."""
    broker, unknown_to_broker = BrokerConfig.from_properties(properties)
    shared = {name: text for name, text in properties.items() if name not in BROKER_ONLY_IN_SERVER}
    namesrv, unknown_to_namesrv = NamesrvConfig.from_properties(shared)
    neither = set(unknown_to_broker) & set(unknown_to_namesrv)
    return broker, namesrv, [name for name in properties if name in neither]


def warnings_for(given: Iterable[str], *tables: type[Settings]) -> list[str]:
    """A sentence for each given key that no table knows, or that is known to have no effect here."""
    known = {name: key for table in tables for name, key in keys_by_name(table).items()}
    warnings = []
    for name in given:
        if name in INERT_ELSEWHERE:
            warnings.append(
                f"setting {name} has no effect here: it steers a part that only the Java broker has"
            )
        elif name not in known:
            import difflib  # only a misspelt file needs it

            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "see src/orbitmq/config_keys.py for all keys"
            warnings.append(f"unknown setting {name} is ignored; {hint}")
        elif known[name].inert:
            warnings.append(f"setting {name} has no effect here: {known[name].inert}")
    return warnings


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """`key=value` words of a command line."""
    parsed = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{assignment}: expected key=value, such as flushDiskType=ASYNC_FLUSH")
        parsed[name.strip()] = value.strip()
    return parsed


def read_properties(path: str | os.PathLike[str]) -> dict[str, str]:
    try:
        return load_properties(Path(path).read_text("utf-8"))
    except OSError as problem:
        raise ConfigError(f"configuration file {path} cannot be read: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise ConfigError(f"configuration file {path} is not UTF-8 text: {problem.reason}") from problem
    except PropertiesError as problem:
        raise ConfigError(f"configuration file {path}: {problem}") from problem


def save_changes(path: str | os.PathLike[str], changes: Mapping[str, str]) -> None:
    """Writes changed settings into a configuration file, keeping the operator's comments and order."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    before = target.read_text("utf-8") if target.exists() else ""
    # A crash in the middle must leave the old file or the new one, never half of it.
    fresh = target.with_name(target.name + ".tmp")
    with fresh.open("w", encoding="utf-8") as out:
        out.write(merge_properties(before, changes))
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(target)


def local_ip() -> str:
    """The first non-loopback address of this host, or 127.0.0.1 when it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing; it only makes the system choose a source address.
            # The target is reserved for documentation (RFC 5737).
            probe.connect(("192.0.2.1", 9))
            address: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return address
