"""Which group filters which topic by what: the table that `consumerFilter.json` keeps for a Java broker.

Pulls here are filtered by the subscription of the last heartbeat. The table follows the heartbeats so that a
broker of the other make knows the filters before its first heartbeat; nothing is read back from it but to
keep it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from orbitmq.broker.filter.bloom import BIT_NUM, bit_positions

KEEP_DEAD_MS: Final = 24 * 3_600_000


class Wanted(NamedTuple):
    """A filter that a group online uses now."""

    group: str
    topic: str
    expression: str
    expression_type: str
    version: int


@dataclass(slots=True)
class FilterData:
    expression: str
    expression_type: str
    version: int
    born_ms: int
    dead_ms: int = 0

    @property
    def dead(self) -> bool:
        return self.dead_ms >= self.born_ms


class FilterTable:
    def __init__(self) -> None:
        self.changes = 0
        self._rows: dict[tuple[str, str], FilterData] = {}

    def follow(self, wanted: Iterable[Wanted], now_ms: int) -> None:
        """Takes over what groups online use; the others' filters are dead and forgotten a day later."""
        online = {(row.topic, row.group): row for row in wanted}
        for key, row in online.items():
            known = self._rows.get(key)
            if known is None or known.dead or known.version < row.version:
                self._rows[key] = FilterData(row.expression, row.expression_type, row.version, now_ms)
                self.changes += 1
        for key, known in list(self._rows.items()):
            if key in online:
                continue
            if not known.dead:
                known.dead_ms = max(now_ms, known.born_ms)
                self.changes += 1
            elif now_ms - known.dead_ms > KEEP_DEAD_MS:
                del self._rows[key]
                self.changes += 1

    def to_json(self) -> dict[str, object]:
        topics: dict[str, dict[str, Any]] = {}
        for (topic, group), row in self._rows.items():
            by_group = topics.setdefault(topic, {"groupFilterData": {}, "topic": topic})["groupFilterData"]
            by_group[group] = {
                "bloomFilterData": {"bitNum": BIT_NUM, "bitPos": bit_positions(group, topic)},
                "bornTime": row.born_ms,
                "clientVersion": row.version,
                "consumerGroup": group,
                "dead": row.dead,
                "deadTime": row.dead_ms,
                "expression": row.expression,
                "expressionType": row.expression_type,
                "topic": topic,
            }
        return {"filterDataByTopic": topics}

    def from_json(self, data: Any, /) -> None:
        rows: dict[tuple[str, str], FilterData] = {}
        for topic, by_group in (data.get("filterDataByTopic") or {}).items():
            for group, row in (by_group.get("groupFilterData") or {}).items():
                rows[str(topic), str(group)] = FilterData(
                    str(row.get("expression") or ""),
                    str(row.get("expressionType") or "SQL92"),
                    int(row.get("clientVersion") or 0),
                    int(row.get("bornTime") or 0),
                    int(row.get("deadTime") or 0),
                )
        self._rows = rows
