"""Stand-ins for the connections and heartbeats of clients."""

from __future__ import annotations

from orbitmq.wire.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from orbitmq.wire.command import Command


class FakeChannel:
    """A connection that remembers what was sent to it."""

    def __init__(self, peer: str = "10.0.0.1:5000") -> None:
        self.peer = peer
        self.closed = False
        self.sent: list[Command] = []

    def oneway(self, command: Command, /) -> None:
        self.sent.append(command)

    def close(self) -> None:
        self.closed = True

    def __repr__(self) -> str:
        return f"FakeChannel({self.peer})"


def subscribe(topic: str, expression: str = "*", version: int = 1, kind: str = "TAG") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression, sub_version=version, expression_type=kind)


def consumer(group: str, *subscriptions: SubscriptionData, model: str = "CLUSTERING") -> ConsumerData:
    return ConsumerData(group_name=group, subscription_data_set=list(subscriptions), message_model=model)


def beat(client_id: str, *consumers: ConsumerData, producers: tuple[str, ...] = ()) -> HeartbeatData:
    return HeartbeatData(
        client_id=client_id,
        consumer_data_set=list(consumers),
        producer_data_set=[ProducerData(group_name=name) for name in producers],
    )
