"""`python -m tests.fuzz`: hostile bytes into one codec, found by what they reach in its code.

Exit codes: 0 nothing found, 1 an input was found that breaks the codec (it is in a file, and how to replay it is
printed), 2 wrong usage, or an engine that does not run.
"""

from __future__ import annotations

import sys

from tests.fuzz.runner import main

if __name__ == "__main__":
    sys.exit(main())
