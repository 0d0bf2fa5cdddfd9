"""Foreign text on an operator's terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with everything that a terminal might obey escaped."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode() for letter in text
    )
