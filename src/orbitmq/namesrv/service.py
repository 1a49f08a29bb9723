"""The name server as a service: requests to the route table and back, and a scan that notices silence."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from orbitmq.config import ConfigError, PropertiesError, dump_properties, load_properties, save_changes
from orbitmq.namesrv.kv_config import KvConfig
from orbitmq.namesrv.registration import decode_registration, decode_version
from orbitmq.namesrv.routes import BROKER_TIMEOUT_MS, Evicted, RouteTable
from orbitmq.net.connection import Connection
from orbitmq.net.errors import RequestError
from orbitmq.net.limits import Limits
from orbitmq.net.listener import Listener
from orbitmq.net.service import Handler, RequestService
from orbitmq.wire import fastjson
from orbitmq.wire.codes import RequestCode, ResponseCode
from orbitmq.wire.command import Command
from orbitmq.wire.headers import (
    AddPermResponse,
    BrokerIdentityHeader,
    BrokerMemberGroupHeader,
    BrokerNameHeader,
    DataVersionResponse,
    DeleteTopicInNamesrvHeader,
    KvKeyHeader,
    KvNamespaceHeader,
    KvResponse,
    PutKvHeader,
    RegisterBrokerResponse,
    RouteInfoHeader,
    TopicsByClusterHeader,
    WipePermResponse,
    parse,
    to_ext,
)
from orbitmq.wire.topics import DEFAULT_TOPIC, ORDER_TOPIC_NAMESPACE

log = logging.getLogger("orbitmq.namesrv")

SCAN_INTERVAL_MS: Final = 10_000
STRICT_JSON_VERSION: Final = 401
# Changing these from afar would let a request choose files to write.
PROTECTED_KEYS: Final = frozenset(
    {"configBlackList", "configStorePath", "controllerStorePath", "kvConfigPath", "rocketmqHome"}
)


class Config(Protocol):
    """What a name server needs of its configuration (`orbitmq.config.NamesrvConfig` has it)."""

    listen_host: str
    listen_port: int
    kv_config_path: str
    config_store_path: str
    order_message_enable: bool

    def to_properties(self) -> dict[str, str]: ...

    def update(self, properties: dict[str, str]) -> list[str]: ...


class NameServer(RequestService):
    """One name server. It knows only what brokers tell it, and forgets them when they fall silent."""

    def __init__(self, config: Config, clock: Callable[[], int] | None = None) -> None:
        self.config = config
        self.routes = RouteTable(getattr(config, "broker_timeout_ms", BROKER_TIMEOUT_MS))
        self.kv = KvConfig(config.kv_config_path)
        self.port = 0
        self._clock = clock
        self._scan_s = getattr(config, "scan_interval_ms", SCAN_INTERVAL_MS) / 1000
        self._listener: Listener | None = None
        self._scanner: asyncio.Task[None] | None = None
        self._encoded: dict[tuple[str, bool], bytes] = {}
        self._encoded_generation = 0
        super().__init__(self._handler_table())

    def _handler_table(self) -> dict[int, Handler]:
        return {
            RequestCode.REGISTER_BROKER: self._register_broker,
            RequestCode.UNREGISTER_BROKER: self._unregister_broker,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route_info,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._member_group,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_perm,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_sub_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._unit_sub_ununit_topics,
            RequestCode.PUT_KV_CONFIG: self._put_kv,
            RequestCode.GET_KV_CONFIG: self._get_kv,
            RequestCode.DELETE_KV_CONFIG: self._delete_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._kv_namespace,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
        }

    async def start(self, host: str | None = None, port: int | None = None) -> int:
        """Listens, at the configured address unless told otherwise; returns the port."""
        self.kv.load()
        self._listener = Listener(self, _limits(self.config))
        self.port = await self._listener.start(
            self.config.listen_host if host is None else host,
            self.config.listen_port if port is None else port,
        )
        self._scanner = asyncio.create_task(self._scan_for_ever(), name="namesrv-scan")
        log.info("name server listens on port %d", self.port)
        return self.port

    async def stop(self) -> None:
        if self._scanner is not None:
            self._scanner.cancel()
            await asyncio.gather(self._scanner, return_exceptions=True)
            self._scanner = None
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.stop()
        await self.stop_tasks()

    def connection_lost(self, conn: Connection) -> None:
        gone = self.routes.connection_lost(conn)
        if self._listener is not None:
            _log_evicted(gone, "its connection ended")

    async def _scan_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._scan_s)
            self.scan()

    def scan(self) -> None:
        """Drops the brokers that were silent too long, and their connections, which are likely half open."""
        gone = self.routes.scan(self._now_ms())
        _log_evicted(gone, f"silent for {self.routes.broker_timeout_ms / 1000:g} s")
        for broker in gone:
            if isinstance(broker.conn, Connection):
                broker.conn.close()

    def _now_ms(self) -> int:
        # Liveness is about time passed: a wall clock that is set forward must not evict every broker.
        return self._clock() if self._clock else int(asyncio.get_running_loop().time() * 1000)

    def _register_broker(self, conn: Connection, cmd: Command) -> Command:
        registration = decode_registration(cmd, self.routes, conn)
        result = self.routes.register(registration, self._now_ms())
        for warning in result.warnings:
            log.warning("%s", warning)
        if result.is_new:
            log.info(
                "broker %s id %d registered from %s as %s",
                registration.broker_name,
                registration.broker_id,
                conn.peer,
                registration.addr,
            )
        order = self.kv.namespace(ORDER_TOPIC_NAMESPACE)
        header = RegisterBrokerResponse(ha_server_addr=result.ha_server_addr, master_addr=result.master_addr)
        return cmd.reply(ext=to_ext(header), body=b"" if order is None else _kv_table(order))

    def _unregister_broker(self, conn: Connection, cmd: Command) -> Command:
        header = parse(BrokerIdentityHeader, cmd.ext)
        gone = self.routes.unregister(header.broker_name, header.broker_addr)
        if gone is not None:
            log.info("broker %s id %d at %s unregistered", gone.broker_name, gone.broker_id, gone.addr)
        return cmd.reply()

    def _query_data_version(self, conn: Connection, cmd: Command) -> Command:
        header = parse(BrokerIdentityHeader, cmd.ext)
        version = decode_version(cmd.body)
        changed, known = self.routes.query_version(header.broker_addr, version, self._now_ms())
        body = b"" if known is None else fastjson.dumps(known.to_dict())
        return cmd.reply(ext=to_ext(DataVersionResponse(changed=changed)), body=body)

    def _route_info(self, conn: Connection, cmd: Command) -> Command:
        header = parse(RouteInfoHeader, cmd.ext)
        strict = cmd.version >= STRICT_JSON_VERSION or bool(header.accept_standard_json_only)
        body = self._encoded_route(header.topic, strict)
        if body is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, self._why_no_route(header.topic))
        return cmd.reply(body=body)

    def _encoded_route(self, topic: str, strict: bool) -> bytes | None:
        """Clients ask for the same routes every 30 s; between changes the answer is kept as bytes."""
        if self._encoded_generation != self.routes.generation:
            self._encoded.clear()
            self._encoded_generation = self.routes.generation
        body = self._encoded.get((topic, strict))
        if body is not None:
            return body
        route = self.routes.route(topic)
        if route is None:
            return None
        if self.config.order_message_enable:
            order = self.kv.get(ORDER_TOPIC_NAMESPACE, topic)
            route = dict(sorted({**route, "orderTopicConf": order}.items()))
        body = fastjson.dumps_strict(route) if strict else fastjson.dumps(route)
        self._encoded[topic, strict] = body
        return body

    def _why_no_route(self, topic: str) -> str:
        # Tools look for the beginning of this text.
        text = f"No topic route info in name server for the topic: {topic}"
        if not self.routes.broker_count():
            return f"{text}. No broker is registered here: start one, or check its namesrvAddr"
        if self.routes.route(DEFAULT_TOPIC) is not None:
            return f"{text}. No broker has this topic yet: it is made by the first send to it, or by hand"
        return f"{text}. No broker has this topic and auto-creation is off: create it (updateTopic)"

    def _cluster_info(self, conn: Connection, cmd: Command) -> Command:
        return cmd.reply(body=fastjson.dumps(self.routes.cluster_info()))

    def _member_group(self, conn: Connection, cmd: Command) -> Command:
        header = parse(BrokerMemberGroupHeader, cmd.ext)
        group = self.routes.member_group(header.cluster_name, header.broker_name)
        return cmd.reply(body=fastjson.dumps({"brokerMemberGroup": group}))

    def _wipe_write_perm(self, conn: Connection, cmd: Command) -> Command:
        name = parse(BrokerNameHeader, cmd.ext).broker_name
        count = self.routes.wipe_write_perm(name)
        log.info("write permission of broker %s taken away by %s: %d topics", name, conn.peer, count)
        return cmd.reply(ext=to_ext(WipePermResponse(wipe_topic_count=count)))

    def _add_write_perm(self, conn: Connection, cmd: Command) -> Command:
        name = parse(BrokerNameHeader, cmd.ext).broker_name
        count = self.routes.add_write_perm(name)
        log.info("write permission of broker %s given back by %s: %d topics", name, conn.peer, count)
        return cmd.reply(ext=to_ext(AddPermResponse(add_topic_count=count)))

    def _delete_topic(self, conn: Connection, cmd: Command) -> Command:
        header = parse(DeleteTopicInNamesrvHeader, cmd.ext)
        if self.routes.delete_topic(header.topic, header.cluster_name):
            log.info("topic %s deleted by %s", header.topic, conn.peer)
        return cmd.reply()

    def _all_topics(self, conn: Connection, cmd: Command) -> Command:
        return _topic_list(cmd, self.routes.topic_list())

    def _topics_by_cluster(self, conn: Connection, cmd: Command) -> Command:
        return _topic_list(cmd, self.routes.topics_by_cluster(parse(TopicsByClusterHeader, cmd.ext).cluster))

    def _system_topics(self, conn: Connection, cmd: Command) -> Command:
        topics, addr = self.routes.system_topics()
        return _topic_list(cmd, topics, addr)

    def _unit_topics(self, conn: Connection, cmd: Command) -> Command:
        return _topic_list(cmd, self.routes.unit_topics())

    def _unit_sub_topics(self, conn: Connection, cmd: Command) -> Command:
        return _topic_list(cmd, self.routes.unit_sub_topics())

    def _unit_sub_ununit_topics(self, conn: Connection, cmd: Command) -> Command:
        return _topic_list(cmd, self.routes.unit_sub_ununit_topics())

    def _put_kv(self, conn: Connection, cmd: Command) -> Command:
        header = parse(PutKvHeader, cmd.ext)
        self._change_kv(lambda: self.kv.put(header.namespace, header.key, header.value))
        log.info("%s put %s/%s", conn.peer, header.namespace, header.key)
        return cmd.reply()

    def _get_kv(self, conn: Connection, cmd: Command) -> Command:
        header = parse(KvKeyHeader, cmd.ext)
        value = self.kv.get(header.namespace, header.key)
        if value is None:
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return cmd.reply(ext=to_ext(KvResponse(value=value)))

    def _delete_kv(self, conn: Connection, cmd: Command) -> Command:
        header = parse(KvKeyHeader, cmd.ext)
        self._change_kv(lambda: self.kv.delete(header.namespace, header.key))
        log.info("%s deleted %s/%s", conn.peer, header.namespace, header.key)
        return cmd.reply()

    def _kv_namespace(self, conn: Connection, cmd: Command) -> Command:
        namespace = parse(KvNamespaceHeader, cmd.ext).namespace
        keys = self.kv.namespace(namespace)
        if keys is None:
            raise RequestError(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return cmd.reply(body=_kv_table(keys))

    def _change_kv(self, change: Callable[[], object]) -> None:
        try:
            change()
        except OSError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"nothing changed: kvConfigPath {self.config.kv_config_path} cannot be written: {error}",
            ) from error
        self._encoded.clear()

    def _update_config(self, conn: Connection, cmd: Command) -> Command:
        try:
            properties = load_properties(cmd.body.decode())
        except (UnicodeDecodeError, PropertiesError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from error
        if refused := sorted(PROTECTED_KEYS & properties.keys()):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"Can not update config in black list. Change {', '.join(refused)} in the server's own file",
            )
        try:
            unknown = set(self.config.update(properties))
            save_changes(
                self.config.config_store_path,
                {key: value for key, value in properties.items() if key not in unknown},
            )
        except ConfigError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        except OSError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"taken over until the next restart only: {self.config.config_store_path} cannot be written: "
                f"{error}",
            ) from error
        self._encoded.clear()
        log.info("configuration changed by %s: %s", conn.peer, ", ".join(sorted(properties.keys() - unknown)))
        return cmd.reply()

    def _get_config(self, conn: Connection, cmd: Command) -> Command:
        return cmd.reply(body=dump_properties(self.config.to_properties()).encode())


def _topic_list(cmd: Command, topics: list[str], broker_addr: str | None = None) -> Command:
    return cmd.reply(body=fastjson.dumps({"brokerAddr": broker_addr, "topicList": topics}))


def _kv_table(keys: dict[str, str]) -> bytes:
    return fastjson.dumps({"table": keys})


def _log_evicted(gone: Iterable[Evicted], why: str) -> None:
    for broker in gone:
        log.warning(
            "broker %s id %d at %s dropped: %s", broker.broker_name, broker.broker_id, broker.addr, why
        )


def _limits(config: Config) -> Limits:
    usual = Limits()
    return Limits(
        max_frame_bytes=getattr(config, "max_frame_bytes", usual.max_frame_bytes),
        max_connections=getattr(config, "max_connections", usual.max_connections),
        max_partial_bytes=getattr(config, "max_in_flight_bytes", usual.max_partial_bytes),
        idle_seconds=getattr(config, "connection_idle_seconds", usual.idle_seconds),
    )
