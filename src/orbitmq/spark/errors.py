"""Errors of the Spark sources. Spark shows only the text of an exception, so here the text holds the advice too."""

from __future__ import annotations

from orbitmq.client.errors import BadRequest, NotFound, OrbitMQError, Unreachable


class SourceError(OrbitMQError):
    """Cause and advice in one text."""

    def __str__(self) -> str:
        what = super().__str__()
        return f"{what}; {self.hint}" if self.hint else what


class BadOption(SourceError, BadRequest):
    """An option has a value that cannot be used, or does not exist."""

    def __init__(self, option: str, problem: str, *, hint: str = "") -> None:
        super().__init__(f"option {option!r}: {problem}", hint=hint)
        self.option = option


class UnknownTopic(BadOption, NotFound):
    """An option names a topic that is not there."""

    def __init__(self, option: str, topic: str) -> None:
        super().__init__(
            option,
            f"topic {topic!r} does not exist, or no broker that has it is registered",
            hint="check the name with `orbitmq topic list`",
        )


class DataLost(SourceError):
    """Messages that belong to the read are no longer there. Half-open range of queue offsets."""

    def __init__(self, topic: str, broker: str, queue_id: int, start: int, end: int, why: str) -> None:
        self.start, self.end = start, end
        super().__init__(
            f"{end - start} message(s) of topic {topic!r} on {broker or 'the store'} queue {queue_id} are missing: "
            f"offsets {start} to {end - 1}; {why}",
            hint="set failOnDataLoss to false to go on without them",
        )


class BrokerLost(SourceError, Unreachable):
    """A broker gave no answer for as long as we were ready to wait."""


class Missing(SourceError, NotFound):
    """What was asked for does not exist."""


def explained(error: OrbitMQError) -> SourceError:
    """The same error with its advice in the text."""
    if isinstance(error, SourceError):
        return error
    told: SourceError
    if isinstance(error, Unreachable):
        told = BrokerLost(str(error), hint=error.hint, maybe_processed=error.maybe_processed)
    else:
        kind = Missing if isinstance(error, NotFound) else SourceError
        told = kind(str(error), hint=error.hint, code=error.code, retryable=error.retryable)
    told.__cause__ = error
    return told
