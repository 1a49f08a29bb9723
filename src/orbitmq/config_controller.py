"""Settings of the controller, alone or inside a name server. Keys marked *ours* do not exist in RocketMQ.

Imports nothing of ours but the mechanism in `config_model`.
"""

from __future__ import annotations

from dataclasses import dataclass

from orbitmq.config_model import Range, setting

PORT = Range(0, 65535)
CONTROLLER_PORT = 9878


@dataclass(slots=True)
class ControllerRules:
    """What is the same wherever a controller runs."""

    controller_store_path: str = setting(
        "controllerStorePath", "~/controller", "directory of what it must not forget, unless that is in etcd"
    )
    controller_etcd: str = setting(
        "controllerEtcd", "", "ours: etcd nodes, `host:port` separated by `;`, for several controllers"
    )
    controller_etcd_prefix: str = setting(
        "controllerEtcdPrefix", "/orbitmq/controller/", "ours: where its keys begin in etcd"
    )
    controller_address: str = setting(
        "controllerAddress", "", "ours: host told to brokers by other controllers; blank: found out"
    )
    controller_lease_ms: int = setting(
        "controllerLeaseMs", 2000, "ours: ms a master may serve without hearing from it", within=Range(200)
    )
    controller_max_clock_gap: int = setting(
        "controllerMaxClockGap", 10_000, "ours: ms a broker's clock may be off", within=Range(1)
    )
    enable_elect_unclean_master: bool = setting(
        "enableElectUncleanMaster", False, "elect a replica that lacks messages rather than none"
    )


@dataclass(slots=True)
class ControllerKeys(ControllerRules):
    listen_host: str = setting("listenHost", "0.0.0.0", "ours: interface to listen on")
    listen_port: int = setting(
        "listenPort", CONTROLLER_PORT, "port for brokers and tools; 0: any free one", within=PORT
    )
