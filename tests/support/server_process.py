"""Real `orbitmq` servers in processes of their own, for tests that want what a user gets."""

from __future__ import annotations

from pathlib import Path

from scripts import serving
from scripts.serving import SOURCE, OrbitProcess, free_broker_port, free_port, set_options

__all__ = ["SOURCE", "BrokerProcess", "OrbitProcess", "ServerProcess", "free_broker_port", "free_port"]


class ServerProcess(serving.ServerProcess):
    """`orbitmq server` with its data below `directory`, ready when the constructor returns.

    Settings are RocketMQ's keys (`flushDiskType="ASYNC_FLUSH"`). Ports and data stay the same over `restart`.
    """

    def __init__(
        self, directory: Path, *, wait: bool = True, start: bool = True, **settings: str | int | bool
    ) -> None:
        super().__init__(directory / "data", {"brokerName": "broker-a", **settings}, wait=wait, start=start)


class BrokerProcess(OrbitProcess):
    """`orbitmq broker` beside a name server that runs already."""

    def __init__(self, directory: Path, namesrv: str, name: str, **settings: str | int | bool) -> None:
        self.data = directory / name
        self.port = free_broker_port()
        chosen = {"brokerIP1": "127.0.0.1", "brokerName": name, **settings}
        options = ["-n", namesrv, "--data", str(self.data), "--port", str(self.port)]
        super().__init__(["broker", *options, *set_options(chosen)], ready="OrbitMQ broker ready")

    @property
    def broker_addr(self) -> str:
        return f"127.0.0.1:{self.port}"
