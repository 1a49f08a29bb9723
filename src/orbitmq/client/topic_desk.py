"""Where the messages of one topic go: its writable queues, each with its broker's connection and its templates."""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Any

from orbitmq.client.core.faults import Faults
from orbitmq.client.core.queue_choice import Choice, Turns, queue_index
from orbitmq.client.errors import BadRequest, NotFound
from orbitmq.client.fast_send import FrameMaker
from orbitmq.client.outgoing import OrderKey
from orbitmq.client.receipt import Place
from orbitmq.client.routes import TopicRoute
from orbitmq.net.channel import Channel


class Door:
    """The way to one broker: its master's address and, once made, the connection."""

    __slots__ = ("addr", "channel", "name")

    def __init__(self, name: str, addr: str) -> None:
        self.name = name
        self.addr = addr
        self.channel: Channel | None = None


class Slot:
    """One queue that takes messages."""

    __slots__ = ("broker", "door", "frames", "place", "queue_id")

    def __init__(self, group: str, topic: str, queue_id: int, door: Door) -> None:
        self.broker = door.name
        self.queue_id = queue_id
        self.door = door
        self.place = Place(topic, door.name, queue_id)
        self.frames = FrameMaker(group, topic, queue_id, door.name)


class TopicDesk:
    """The queues of a topic as the last route says, and whose turn it is."""

    def __init__(self, group: str, topic: str, rng: Random, choice: Choice) -> None:
        self.topic = topic
        self.slots: tuple[Slot, ...] = ()
        self.alone = True
        """There is only one broker: a failed try has nowhere else to go."""
        self.version = 0
        """Grows when the queues or their brokers change."""
        self.next_look = 0.0
        """When the route may be asked for again after a failure."""
        self._group = group
        self._turns = Turns(rng)
        self._quickest = choice is Choice.LEAST_LATENCY

    def follow(self, route: TopicRoute, doors: dict[str, Door]) -> list[str]:
        """Takes over a route; connections to brokers whose address did not change are kept. The brokers that moved."""
        slots: list[Slot] = []
        moved: list[str] = []
        known = {(slot.broker, slot.queue_id): slot for slot in self.slots}
        for queue in route.publish_queues():
            broker = route.brokers.get(queue.broker_name)
            if broker is None or broker.master is None:
                continue
            door = doors.get(broker.name)
            if door is None or door.addr != broker.master:
                if door is not None:
                    moved.append(broker.name)
                door = doors[broker.name] = Door(broker.name, broker.master)
            slot = known.get((broker.name, queue.queue_id))
            if slot is None or slot.door is not door:
                slot = Slot(self._group, self.topic, queue.queue_id, door)
            slots.append(slot)
        if self.slots != tuple(slots):
            self.slots = tuple(slots)
            self.version += 1
        self.alone = len({slot.broker for slot in slots}) < 2
        return moved

    def now(self, slot: Slot) -> Slot | None:
        """The same queue at its broker's present address."""
        if slot in self.slots:
            return slot
        same = (other for other in self.slots if other.place == slot.place)
        return next(same, None)

    def only(self, brokers: Collection[str]) -> bool:
        """Whether all queues are at these brokers."""
        return all(slot.broker in brokers for slot in self.slots)

    def choose(self, faults: Faults, now: float, avoid: tuple[str, ...] = ()) -> Slot:
        slots = self.slots
        if not slots:
            raise self.no_queue()
        if self._quickest:
            return self._turns.quickest(slots, faults, now, avoid)
        if avoid or faults.any:
            return self._turns.choose(slots, faults, now, avoid)
        return self._turns.plain(slots)

    def of_key(self, order_key: OrderKey) -> Slot:
        """Always the same queue for one key, as long as the topic's queues do not change."""
        if not self.slots:
            raise self.no_queue()
        return self.slots[queue_index(order_key, len(self.slots))]

    def at(self, queue: Any) -> Slot:
        """The queue that the caller names."""
        for slot in self.slots:
            if (slot.broker, slot.queue_id) == queue:
                return slot
        if not isinstance(queue, tuple) or len(queue) != 2:
            raise BadRequest(f"queue is {queue!r}", hint='pass a broker and a number: queue=("broker-a", 0)')
        if not self.slots:
            raise self.no_queue()
        brokers = sorted({slot.broker for slot in self.slots})
        raise NotFound(
            f"topic '{self.topic}' has no writable queue {queue[1]} on broker '{queue[0]}'",
            hint=f"its brokers are {', '.join(brokers)}; see `orbitmq topic route {self.topic}`",
        )

    def no_queue(self) -> NotFound:
        return NotFound(
            f"topic '{self.topic}' has no writable queue",
            hint=f"see `orbitmq topic route {self.topic}`: it needs write permission and a master",
            retryable=True,  # a master may be on its way
        )
