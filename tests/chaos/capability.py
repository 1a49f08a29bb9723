"""What this machine lets a test do: decided while tests are collected, so that none has to be left out later.

Faults of networks and disks need root. With ORBITMQ_CI=1 they always belong to the run, and fail with the reason
where they cannot be made; elsewhere they are collected only where they can.
"""

from __future__ import annotations

import os

from tests.chaos.network import why_impossible

_PROBLEM = why_impossible()

PRIVILEGED_WANTED = _PROBLEM is None or os.environ.get("ORBITMQ_CI") == "1"


def require_privileges() -> None:
    assert _PROBLEM is None, (
        f"this run must cut networks (ORBITMQ_CI=1) and cannot: {_PROBLEM}; run it as root, after "
        "`python3 -m scripts.services install`"
    )
