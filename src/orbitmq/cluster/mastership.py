"""Who this master is, and whom it lets follow."""

from __future__ import annotations

from dataclasses import dataclass

from orbitmq.cluster.epochs import EpochHistory
from orbitmq.cluster.greeting import Hello


@dataclass(frozen=True, slots=True)
class Mastership:
    """One mastership of one replica: all of it stays the same as long as it lasts."""

    cluster: str
    broker: str
    replica: int
    epoch: int
    history: EpochHistory

    def refusal(self, hello: Hello) -> str:
        """Why this slave may not follow; empty when it may."""
        if hello.cluster != self.cluster:
            return (
                f"this is a broker of the cluster {self.cluster}, the slave is one of {hello.cluster}; "
                "correct brokerClusterName or controllerAddr of the slave"
            )
        if hello.broker != self.broker:
            return (
                f"this is {self.broker}, the slave belongs to {hello.broker}; "
                "correct brokerName or the address of the slave"
            )
        if hello.replica == self.replica:
            return f"replica {self.replica} is the master itself; two brokers must not share a store"
        if hello.replica < 1:
            return f"{hello.replica} is no number that a controller allots to a replica"
        if hello.epoch > self.epoch:
            return (
                f"the slave looks for the master of epoch {hello.epoch}, this one served epoch {self.epoch}; "
                "the controller will tell this one so"
            )
        if hello.epoch < self.epoch:
            return (
                f"the slave looks for the master of epoch {hello.epoch}, it is {self.epoch} by now; "
                "the controller will tell the slave so"
            )
        if hello.end < 0:
            return f"the slave's log cannot end at {hello.end}"
        return ""
