"""Codec tests run thousands of tiny cases; a busy machine must not turn a slow one into a failure."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("wire", deadline=None)
settings.load_profile("wire")
