"""`python -m tests.simulation`: many seeds through the whole stack, each twice, every invariant checked."""

from __future__ import annotations

import sys

from tests.simulation.runner import main

if __name__ == "__main__":
    sys.exit(main())
