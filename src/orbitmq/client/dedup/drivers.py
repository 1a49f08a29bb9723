"""Optional database drivers: loaded when a guard that needs them is opened, and named when they are missing."""

from __future__ import annotations

import importlib
from typing import Any, Final

from orbitmq.client.errors import BadRequest

# Module → the extra of this package that installs it.
_EXTRAS: Final = {"redis.asyncio": "redis", "psycopg": "postgres", "psycopg_pool": "postgres"}


def load(module: str) -> Any:
    """The driver's module, or an error that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadRequest(
            f"the module {module} cannot be loaded: {error}",
            hint=f"pip install 'orbitmq[{_EXTRAS[module]}]'",
        ) from error


def without_password(address: str) -> str:
    """An address fit for logs and errors: of a URL what follows the user, of `key=value` text what is no secret."""
    if "://" in address:
        return address.rpartition("@")[2].partition("?")[0] or "a local socket"
    shown = [
        pair for pair in address.split() if pair.partition("=")[0] in ("host", "port", "dbname", "service")
    ]
    return " ".join(shown) or "the default place"
