"""numpy, loaded when it is first used: an idle broker and a plain client do without its memory and start time."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _OnDemand(ModuleType):
        def __getattr__(self, name: str) -> object:
            value = getattr(importlib.import_module("numpy"), name)
            setattr(self, name, value)
            return value

    np = _OnDemand("numpy")
