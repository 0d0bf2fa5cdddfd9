"""Session: what the calls of one client stream share.

Each message of a stream is a call of its own, with its own record; the session is what makes them one conversation:
rooms below the edge keep what belongs to the stream as a whole here (one upstream stream per replica, say), and the
edge, which knows when the conversation ends, ends it for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from gateway.core.call import Metadata


class Part(Protocol):
    """Something that lives as long as the session."""

    async def aclose(self) -> None:
        """End at once. Called once; must not raise."""
        ...


P = TypeVar("P", bound=Part)


class Session:
    """One client stream, or the single call of a `generate`.

    `metadata` is what goes on to the replica for the stream as a whole. `deadline_s` is the caller's limit for all of
    it, monotonic seconds.
    """

    __slots__ = ("_closed", "_parts", "deadline_s", "metadata")

    def __init__(self, metadata: Metadata = (), *, deadline_s: float = float("inf")) -> None:
        self.metadata = metadata
        self.deadline_s = deadline_s
        self._parts: dict[object, Part] = {}
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def part(self, key: object, make: Callable[[], P]) -> P:
        """The part kept under `key`, made by the first who asks. Raises RuntimeError after the session ended."""
        if self._closed:
            raise RuntimeError("the session has ended: nothing can be kept in it any more")
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = make()
        return cast(P, found)

    async def aclose(self) -> None:
        """End the session and all its parts. May be called again, and does nothing then."""
        self._closed = True
        while self._parts:
            _, part = self._parts.popitem()
            await part.aclose()
