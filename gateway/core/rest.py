"""Rest: what is left of a call that was given up and not cancelled on its replica."""

from __future__ import annotations

from collections.abc import Callable


class Rest:
    """The replica still works on it. Whoever holds something for as long as that lasts hears of the end here."""

    __slots__ = ("_hearers", "over")

    def __init__(self) -> None:
        self.over = False
        self._hearers: list[Callable[[], None]] = []

    def on_end(self, hear: Callable[[], None]) -> None:
        """Have `hear` called at the end, or at once if that has come."""
        if self.over:
            hear()
        else:
            self._hearers.append(hear)

    def end(self) -> None:
        """The replica has ended it. Only the first time counts."""
        hearers, self._hearers = self._hearers, []
        self.over = True
        for hear in hearers:
            hear()
