"""The room of filters: makes pulls understand SQL92, and keeps what groups filter by on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from orbitmq.broker.filter.compiler import compile_sql, properties_of
from orbitmq.broker.filter.filter_table import Wanted
from orbitmq.broker.filter.record import property_text
from orbitmq.broker.pull import tag_filter
from orbitmq.broker.room import Room
from orbitmq.broker.timers import Timers
from orbitmq.net.errors import RequestError
from orbitmq.store.selection import Selection
from orbitmq.wire.bodies import SubscriptionData
from orbitmq.wire.codes import ResponseCode
from orbitmq.wire.properties import find_property
from orbitmq.wire.subscription import SQL92_TYPE, TAG_TYPE
from orbitmq.wire.topics import RETRY_PREFIX

if TYPE_CHECKING:
    from orbitmq.broker.broker import Broker

log = logging.getLogger("orbitmq.broker")

LOOK_S: Final = 1.0
FOLLOW_MS: Final = 10_000
MAX_REPORTED: Final = 10_000
MOST_SELECTIONS: Final = 256


class Filters(Room):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._reported: set[tuple[str, str, str]] = set()
        self._follow_at_ms = 0
        self._selections: dict[str, Selection] = {}
        broker.gateway.pulls.compile_filter = self.compile

    def start(self, timers: Timers) -> None:
        timers.every(LOOK_S, self._look, "filters")

    def _look(self) -> None:
        if self._broker.clock() >= self._follow_at_ms:
            self.follow()

    def stop(self) -> None:
        self.follow()

    def compile(self, subscription: SubscriptionData) -> Selection:
        """What a pull under this subscription gets; ValueError when the expression is wrong."""
        kind = subscription.expression_type or TAG_TYPE
        if kind == TAG_TYPE:
            if subscription.topic.startswith(RETRY_PREFIX) and self._broker.config.filter_support_retry:
                group = subscription.topic.removeprefix(RETRY_PREFIX)
                return Selection(tag_filter(subscription).tag_codes, self._retried(group))
            return tag_filter(subscription)
        if not self._broker.config.enable_property_filter:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {kind}; set "
                "enablePropertyFilter=true on the broker to allow it",
            )
        if kind != SQL92_TYPE:
            raise ValueError(f"the expression type {kind!r} is not known; use TAG or SQL92")
        self._follow_at_ms = 0  # somebody may be new: do not wait for the next round
        return self._by_condition(subscription.sub_string)

    def _by_condition(self, text: str) -> Selection:
        """One for all who ask the same: they share what is known about the records."""
        found = self._selections.get(text)
        if found is None:
            found = Selection(accept=compile_sql(text), names=properties_of(text))
            if len(self._selections) >= MOST_SELECTIONS:
                self._selections.clear()
            self._selections[text] = found
        return found

    def _retried(self, group: str) -> Callable[[bytes], bool]:
        """For filterSupportRetry: a retried message still has to match what its group asks of its first
        topic.
        """
        subscription_of = self._broker.clients.subscription

        def accept(record: bytes) -> bool:
            topic = find_property(property_text(record), b"RETRY_TOPIC")
            subscription = None if topic is None else subscription_of(group, topic.decode("utf-8", "replace"))
            if subscription is None or (subscription.expression_type or TAG_TYPE) == TAG_TYPE:
                return True
            try:
                return compile_sql(subscription.sub_string)(record)
            except ValueError:  # the pull of that topic is refused with the reason
                return True

        return accept

    def follow(self) -> None:
        """Brings `consumerFilter.json` up to what groups online use now."""
        wanted = list(self._wanted())
        for row in wanted:
            self._report_bad(row)
        now_ms = self._broker.clock()
        self._broker.filters.follow(wanted, now_ms)
        self._follow_at_ms = now_ms + FOLLOW_MS

    def _wanted(self) -> Iterator[Wanted]:
        for group in self._broker.clients.consumer_groups():
            found = self._broker.clients.consumer_group(group)
            for topic, subscription in (found.subscriptions if found else {}).items():
                kind = subscription.expression_type or TAG_TYPE
                if kind != TAG_TYPE:
                    yield Wanted(group, topic, subscription.sub_string, kind, subscription.sub_version)

    def _report_bad(self, row: Wanted) -> None:
        """Heartbeats are taken whatever they subscribe to; who cannot get a message is named once."""
        key = (row.group, row.topic, row.expression)
        if key in self._reported:
            return
        try:
            compile_sql(row.expression)
        except ValueError as error:
            if len(self._reported) > MAX_REPORTED:
                self._reported.clear()
            self._reported.add(key)
            log.warning("group %s gets no message of topic %s: %s", row.group, row.topic, error)
