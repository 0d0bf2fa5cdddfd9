"""`python -m tests.simulation`: many seeds through the whole stack, each twice, every invariant checked; with `stress`
the rows of the stress table instead.
"""

from __future__ import annotations

import sys

from tests.simulation import runner
from tests.simulation.stress import command

if __name__ == "__main__":
    sys.exit(command.main(sys.argv[2:]) if sys.argv[1:2] == ["stress"] else runner.main())
