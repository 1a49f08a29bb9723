"""Why a store takes no writes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Fault:
    """A full disk heals by itself, a failed flush does not."""

    reason: str
    heals: bool
