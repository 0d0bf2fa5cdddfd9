"""The error of this package: what happened and where, and the one command or step that helps."""

from __future__ import annotations


class LocalFleetError(Exception):
    """Something keeps the fleet from working. `remedy` says what to do, as one command where possible."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}\n  remedy: {remedy}")
        self.what = what
        self.remedy = remedy
