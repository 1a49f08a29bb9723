from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from orbitmq.client.dedup import Dedup
from orbitmq.client.dedup.drivers import without_password
from orbitmq.client.errors import BadRequest


@pytest.mark.parametrize(
    ("absent", "extra"), [("psycopg", "postgres"), ("psycopg_pool", "postgres"), ("redis.asyncio", "redis")]
)
def test_a_missing_driver_is_named_with_the_extra_to_install(
    absent: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("psycopg", "psycopg_pool", "redis.asyncio"):
        monkeypatch.setitem(sys.modules, module, None if module == absent else FakeDriver())
    guard = Dedup.redis_postgres("redis://127.0.0.1:1", "postgresql://127.0.0.1:1/shop")
    with pytest.raises(BadRequest, match=absent) as caught:
        asyncio.run(guard.open())
    assert caught.value.hint == f"pip install 'orbitmq[{extra}]'"


def test_no_driver_is_loaded_before_it_is_needed() -> None:
    program = (
        "import sys; from orbitmq.client.dedup import Dedup; Dedup.sqlite('a.db');"
        "Dedup.redis_postgres('redis://', '');"
        "print([name for name in ('redis', 'psycopg', 'psycopg_pool') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=20
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:secret@db.example:5432/shop?sslpassword=x", "db.example:5432/shop"),
        ("host=db.example password=secret dbname=shop", "host=db.example dbname=shop"),
        ("redis://:secret@cache:6379/0", "cache:6379/0"),
        ("", "the default place"),
    ],
)
def test_errors_and_logs_show_no_password(address: str, shown: str) -> None:
    assert without_password(address) == shown


class FakeDriver:
    """Stands for an installed driver that is not asked for anything before the missing one is noticed."""

    class AsyncConnectionPool:
        @staticmethod
        async def check_connection(connection: object) -> None: ...

        def __init__(self, *args: object, **options: object) -> None: ...

        async def open(self, **options: object) -> None: ...
        async def close(self) -> None: ...
        def connection(self) -> FakeDriver:
            return FakeDriver()

    class Error(Exception): ...

    async def __aenter__(self) -> FakeDriver:
        return self

    async def __aexit__(self, *failure: object) -> None: ...

    async def execute(self, sql: str) -> FakeDriver:
        return self

    async def fetchone(self) -> tuple[bool]:
        return (True,)
