"""Which log files may go, and letting them go. The policy is a pure function; the store carries it out.

By age at the hours set for it; at any hour when the disk is fuller than wished or somebody asked; regardless of age when
it is dangerously full. The file being written always stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Why(Enum):
    NOT_DUE = "not due"
    HOUR = "the hour of cleaning"
    DISK = "the disk is fuller than diskMaxUsedSpaceRatio"
    FORCED = "the disk is fuller than diskSpaceCleanForciblyRatio"
    MANUAL = "asked for"


@dataclass(frozen=True, slots=True)
class RetentionRules:
    keep_ms: int = 72 * 3_600_000
    hours: frozenset[int] = frozenset({4})
    max_used: float = 0.75
    force_used: float = 0.85
    refuse_used: float = 0.90
    may_force: bool = True
    files_per_round: int = 10


class LogFile(NamedTuple):
    base: int
    modified_ms: int


def why_clean(rules: RetentionRules, used: float, hour: int, manual: bool) -> Why:
    if used >= rules.force_used and rules.may_force:
        return Why.FORCED
    if used >= rules.max_used:
        return Why.DISK
    if manual:
        return Why.MANUAL
    return Why.HOUR if hour in rules.hours else Why.NOT_DUE


def victims(rules: RetentionRules, files: Sequence[LogFile], why: Why, now_ms: int) -> list[int]:
    """Oldest first, never the last one; the first that is too young ends the round, unless age does not matter."""
    if why is Why.NOT_DUE:
        return []
    chosen: list[int] = []
    for file in files[:-1][: rules.files_per_round]:
        if why is not Why.FORCED and file.modified_ms + rules.keep_ms > now_ms:
            break
        chosen.append(file.base)
    return chosen


def refuses_writes(rules: RetentionRules, used: float) -> bool:
    return used >= rules.refuse_used
