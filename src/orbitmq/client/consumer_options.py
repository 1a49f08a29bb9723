"""The options of a consumer by name, so that editors and type checkers know them where they are passed on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from orbitmq.client.errors import BadRequest

if TYPE_CHECKING:
    from orbitmq.client.core.allocation import Strategy
    from orbitmq.client.core.process_queue import Limits
    from orbitmq.client.dedup import Guard
    from orbitmq.client.offset_store import Start
    from orbitmq.client.times import Duration


class ConsumerOptions(TypedDict, total=False):
    """`Consumer` says what they mean. Filters are not among them: those belong to a topic."""

    ordered: bool
    broadcast: bool
    start: Start
    concurrency: int
    max_retries: int | None
    dedup: Guard | None
    limits: Limits | None
    allocation: str | Strategy
    allow_mixed: bool
    handover: Duration
    handler_timeout: Duration | None
    commit_every: Duration
    rebalance_every: Duration
    page_bytes: int
    offsets_dir: str | Path | None


def check_options(options: ConsumerOptions) -> None:
    """A misspelt option is refused where it is written, not when the program starts."""
    known = ConsumerOptions.__annotations__
    for name in options:
        if name not in known:
            raise BadRequest(
                f"a consumer has no option '{name}'", hint=f"options are {', '.join(sorted(known))}"
            )
