"""Which log files may go: a pure function of the files, the fill of the disk and the time.

By age at the hours set for it; at any hour when the disk is fuller than wished or somebody asked;
regardless of age when it is dangerously full. The file being written always stays.
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
    files_by_hand: int = 200


class LogFile(NamedTuple):
    base: int
    end: int
    modified_ms: int


def why_clean(rules: RetentionRules, used: float, hour: int, manual: bool) -> Why:
    if used >= rules.force_used and rules.may_force:
        return Why.FORCED
    if used >= rules.max_used:
        return Why.DISK
    if manual:
        return Why.MANUAL
    return Why.HOUR if hour in rules.hours else Why.NOT_DUE


def victims(
    rules: RetentionRules, files: Sequence[LogFile], why: Why, now_ms: int, *, manual: bool = False
) -> list[LogFile]:
    """Oldest first, never the last; one that is too young ends the round, unless age does not matter."""
    if why is Why.NOT_DUE:
        return []
    chosen: list[LogFile] = []
    for file in files[:-1][: rules.files_by_hand if manual else rules.files_per_round]:
        expired = file.modified_ms + rules.keep_ms <= now_ms
        # By hand everything that expired goes at once; without need nothing younger does.
        if not expired and (why is not Why.FORCED or len(chosen) >= rules.files_per_round):
            break
        chosen.append(file)
    return chosen


def up_to(files: Sequence[LogFile], needed_from: int) -> list[LogFile]:
    """Those that lie wholly before a log offset from which on the log is still needed."""
    kept = next((i for i, file in enumerate(files) if file.end > needed_from), len(files))
    return list(files[:kept])


def refuses_writes(rules: RetentionRules, used: float) -> bool:
    return used >= rules.refuse_used
