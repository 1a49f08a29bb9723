"""A broker group as tools are shown it."""

from __future__ import annotations

from orbitmq.cluster.controller.presence import Presence
from orbitmq.cluster.controller.state import GroupState
from orbitmq.wire.controller_bodies import GroupView, ReplicaView


def view_of(
    state: GroupState,
    presence: Presence,
    master: int | None,
    lease_end_ms: int,
    problem: str | None,
    now_ms: int,
) -> GroupView:
    return GroupView(
        broker=state.broker,
        cluster=state.cluster,
        epoch=state.epoch,
        in_sync=list(state.in_sync),
        lease_ms_left=max(0, lease_end_ms - now_ms) if master is not None else None,
        master=master,
        problem=problem or None,
        replicas=[_replica_view(state, presence, number, now_ms) for number in sorted(state.replicas)],
        version=state.version,
    )


def _replica_view(state: GroupState, presence: Presence, number: int, now_ms: int) -> ReplicaView:
    live = presence.live.get(number)
    replica = state.replicas[number]
    heard = live if live is not None and live.heard else None
    return ReplicaView(
        address=replica.address,
        alive=presence.alive(number, now_ms),
        end=heard.end if heard else 0,
        epoch=heard.epoch if heard else 0,
        ha_address=replica.ha_address,
        heard_ms_ago=max(0, now_ms - heard.heard_ms) if heard else None,
        in_sync=number in state.in_sync,
        replica=number,
        role=heard.role if heard else "",
    )
