"""An admission of given replicas."""

from __future__ import annotations

import random

from gateway.core.snapshot import Candidate
from gateway.decide.admission import Admission
from gateway.decide.pick import LeastInFlight


def admission(*candidates: Candidate, queue_max: int | None = None, seed: int = 1) -> Admission:
    made = Admission(LeastInFlight(random.Random(seed)), queue_max)
    made.update(candidates)
    return made
