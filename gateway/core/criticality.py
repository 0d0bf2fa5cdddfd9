"""Classes of calls: how much it matters that a call is served when not all can be.

The four of Google's SRE book (Beyer et al., Site Reliability Engineering, 21 "Handling Overload"), best first; code
counts them from 0. The words are what callers, policies, records and metrics say.
"""

from __future__ import annotations

from typing import Literal, get_args

ClassName = Literal["critical_plus", "critical", "sheddable_plus", "sheddable"]

CLASS_NAMES: tuple[ClassName, ...] = get_args(ClassName)
"""By their numbers: 0 is shed last, 3 first."""
CLASS_OF: dict[str, int] = {name: rank for rank, name in enumerate(CLASS_NAMES)}
DEFAULT_NAME: ClassName = "critical"
"""Of calls and tenants of which nothing is said."""
DEFAULT = CLASS_OF[DEFAULT_NAME]
WORDS = ", ".join(CLASS_NAMES[:-1]) + " or " + CLASS_NAMES[-1]
"""For texts."""
