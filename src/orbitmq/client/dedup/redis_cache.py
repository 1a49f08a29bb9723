"""Redis in front of the ledger: one shared answer for what any member of the group handled lately.

Names enter only after their transaction is committed. So Redis may be empty, restarted or out of reach: the
ledger is asked instead, and the only loss is time. It is never the reason why a message fails.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from datetime import timedelta
from typing import Any, Final

from orbitmq.client.dedup.drivers import load, without_password
from orbitmq.client.dedup.tokens import Name

log = logging.getLogger("orbitmq.client.dedup")

ANSWER_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 5.0
MAX_KEEP: Final = timedelta(days=1)


class RedisCache:
    """Keys `orbitmq:handled:…` that expire; after a failure Redis is left alone for a few seconds."""

    def __init__(self, url: str, *, keep: timedelta) -> None:
        self._url = url
        self._keep_seconds = max(1, int(min(keep, MAX_KEEP).total_seconds()))
        self._redis: Any = None
        self._failure: type[Exception] = Exception
        self._silent_until = 0.0

    async def open(self) -> None:
        redis = load("redis.asyncio")
        self._failure = redis.RedisError
        self._redis = redis.from_url(
            self._url, socket_timeout=ANSWER_SECONDS, socket_connect_timeout=ANSWER_SECONDS
        )
        self._silent_until = 0.0
        await self._ask("PING")

    async def close(self) -> None:
        if self._redis is not None:
            redis, self._redis = self._redis, None
            await redis.aclose()

    async def knows(self, name: Name) -> bool:
        return bool(await self._ask("EXISTS", _key(name)))

    async def add(self, name: Name) -> None:
        await self._ask("SET", _key(name), 1, "EX", self._keep_seconds)

    async def _ask(self, *command: str | int) -> Any:
        """Redis's answer, or None while it gives none."""
        now = asyncio.get_running_loop().time()
        if now < self._silent_until:
            return None
        try:
            return await self._redis.execute_command(*command)
        except (self._failure, OSError, TimeoutError) as error:
            self._silent_until = now + PAUSE_SECONDS
            log.warning(
                "Redis at %s gives no answer (%s): PostgreSQL alone tells duplicates for %d s",
                without_password(self._url),
                error,
                PAUSE_SECONDS,
            )
            return None


def _key(name: Name) -> str:
    """Of one length whatever the token's, and never the same for another split of scope and token."""
    digest = hashlib.sha256(f"{len(name.scope)}:{name.scope}{name.token}".encode()).hexdigest()
    return f"orbitmq:handled:{digest}"
