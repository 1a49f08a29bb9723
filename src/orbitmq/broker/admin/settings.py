"""The broker's settings, read and changed while it runs."""

from __future__ import annotations

import logging
from typing import Final

from orbitmq.broker.admin.common import refused
from orbitmq.broker.admin.context import Broker, Handler
from orbitmq.config import ConfigError, PropertiesError, dump_properties, load_properties, save_changes
from orbitmq.net.connection import Connection
from orbitmq.net.errors import RequestError
from orbitmq.wire import fastjson
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.headers import BrokerConfigResponse, to_ext

log = logging.getLogger("orbitmq.broker")

# Who the broker is, where it listens and how its files are laid out was settled when it started; a new value
# would be shown and saved, and do nothing or harm. Who may do what must not be opened by a request.
READ_ONLY: Final = frozenset(
    {
        "aclEnable",
        "brokerClusterName",
        "brokerConfigPath",
        "brokerId",
        "brokerIP1",
        "brokerIP2",
        "brokerName",
        "brokerRole",
        "configBlackList",
        "consolePort",
        "enableConsumeQueueExt",
        "flushDiskType",
        "haListenPort",
        "listenHost",
        "listenPort",
        "mappedFileSizeCommitLog",
        "mappedFileSizeConsumeQueue",
        "mappedFileSizeConsumeQueueExt",
        "maxHashSlotNum",
        "maxIndexNum",
        "messageDelayLevel",
        "messageIndexEnable",
        "rocketmqHome",
        "storePathCommitLog",
        "storePathRootDir",
    }
)

# Settings of the Java broker that mqadmin cannot do without: exportConfigs fails when one is absent.
READ_BY_TOOLS: Final = {"filterServerNums": "0", "useTLS": "false"}


def _shown(broker: Broker) -> dict[str, str]:
    return {**READ_BY_TOOLS, **broker.config.to_properties()}


def update_config(broker: Broker, conn: Connection, cmd: Command) -> Command:
    try:
        wanted = load_properties(cmd.body.decode())
    except (UnicodeDecodeError, PropertiesError) as error:
        raise refused(f"the settings are not properties text: {error}; nothing was changed") from error
    changes = _changes(broker, wanted)
    try:
        unknown = broker.config.update(changes)
    except ConfigError as error:
        raise refused(f"{error}; nothing was changed") from error
    known = {name: text for name, text in changes.items() if name not in unknown}
    if known:
        log.info("settings changed by %s: %s", conn.peer, known)
        broker.config_version.bump(broker.clock())
        broker.config_changed()
        _save(broker, known)
    if "brokerPermission" in known:
        # Registrations carry the permission in every topic; name servers only look when the version is new.
        broker.topics.data_version.bump(broker.clock())
        broker.register_soon()
    # Tools update all brokers of a cluster alike, of whatever version: what is unknown here is not an error.
    return cmd.reply(remark=f"not known here and ignored: {', '.join(unknown)}" if unknown else None)


def _changes(broker: Broker, wanted: dict[str, str]) -> dict[str, str]:
    """Without what stays the same: tools may send back everything they read, read-only settings included."""
    now = _shown(broker)
    changes = {name: text for name, text in wanted.items() if now.get(name) != text}
    fixed = sorted(READ_ONLY.intersection(changes))
    if fixed:
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"Can not update config in black list: {', '.join(fixed)} cannot be changed while the broker "
            "runs; change the configuration file and restart it. Nothing was changed.",
        )
    return changes


def _save(broker: Broker, changes: dict[str, str]) -> None:
    if broker.config_path is None:
        return
    try:
        save_changes(broker.config_path, changes)
    except OSError as error:
        raise refused(
            f"{', '.join(changes)} took effect, but will be lost at the next start: {broker.config_path} "
            f"cannot be written, {error.strerror or error}"
        ) from error


def get_config(broker: Broker, conn: Connection, cmd: Command) -> Command:
    version = fastjson.dumps(broker.config_version.to_json()).decode()
    text = dump_properties(_shown(broker))
    return cmd.reply(ext=to_ext(BrokerConfigResponse(version=version)), body=text.encode())


HANDLERS: Final[dict[int, Handler]] = {
    RequestCode.UPDATE_BROKER_CONFIG: update_config,
    RequestCode.GET_BROKER_CONFIG: get_config,
}
