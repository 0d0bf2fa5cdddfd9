"""The garbage collector's settings of a gateway process."""

from __future__ import annotations

import gc

THRESHOLDS = (50_000, 20, 100)
"""Decoding one large JSON makes millions of objects, and with the default threshold a full collection for each few
hundred thousand of them: four times the time of the decoding itself.
"""


def settle() -> None:
    """Once everything that lives as long as the process is there: the collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
