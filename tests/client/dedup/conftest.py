"""Tests with real Redis and PostgreSQL are collected where both servers and their drivers are installed."""

from __future__ import annotations

from importlib.util import find_spec

from scripts import services

DRIVERS = ("redis", "psycopg", "psycopg_pool")

collect_ignore: list[str] = []
if services.missing() or any(find_spec(driver) is None for driver in DRIVERS):
    collect_ignore += ["test_redis_postgres.py", "test_crash_redis_postgres.py"]
