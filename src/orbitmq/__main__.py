"""`python -m orbitmq` is the `orbitmq` command."""

from __future__ import annotations

import sys

from orbitmq.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
