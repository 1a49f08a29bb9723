"""How this process deals with large blocks of memory. Imports nothing of ours."""

from __future__ import annotations

from typing import Final

_LARGEST_KEPT_BYTES: Final = 31 << 20


def keep_large_blocks() -> None:
    """Lets freed blocks be used again instead of being given back to the system; for processes of our own.

    The C library gives large blocks back at once, and each page of the next one has to be faulted in and cleared again:
    of 1 KiB messages in batches this was half the broker's CPU. It learns from the first large block that is freed to
    keep blocks up to that size. The block is not touched, so nothing is used for it.
    """
    bytes(_LARGEST_KEPT_BYTES)
