"""How much a client must take of what it asked for, on either port."""

from __future__ import annotations

TAKEN_LEAST_BYTES = 16_384
"""What a client must take within `write_timeout_ms`, or all that waits if that is less. Were one byte enough, a client
could keep the memory of a large answer for days."""


def owed(waiting: int) -> int:
    """Of `waiting` bytes, how many have to go before the client gets time anew."""
    return min(waiting, TAKEN_LEAST_BYTES)
