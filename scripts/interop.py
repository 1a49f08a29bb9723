"""Runs the interop kit against a fresh server: `python -m scripts.interop [suite ...]`, by default all.

The exit status is the kit's: 0 only when no scenario failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.serving import ServerFailed, serving

KIT = Path(__file__).resolve().parent.parent / "tests" / "interop" / "run.sh"
SUITES = ("java", "java-binary", "go", "node", "python", "rust", "mqadmin")

# What the kit's README asks of a broker: SQL filters, and transaction checks that do not take minutes.
SETTINGS = {
    "enablePropertyFilter": "true",
    "transactionCheckInterval": "5000",
    "transactionTimeOut": "3000",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"some of: {', '.join(SUITES)}")
    suites = parser.parse_args().suites
    unknown = [suite for suite in suites if suite not in SUITES]
    if unknown:
        parser.error(f"no such suite: {', '.join(unknown)}; there are {', '.join(SUITES)}")
    with tempfile.TemporaryDirectory(prefix="orbitmq-interop-") as scratch:
        try:
            with serving(Path(scratch) / "data", SETTINGS) as server:
                print(f"server ready in {server.ready_ms:.0f} ms at {server.namesrv}", flush=True)
                kit = [str(KIT), server.namesrv, *suites]
                status = subprocess.run(kit, env={**os.environ, "SQL": "1"}, check=False).returncode
        except ServerFailed as failed:
            print(f"interop: the server failed: {failed}", file=sys.stderr)
            return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
