"""A word-level Markov chain of order one over the Zen of Python (the text of the standard library's module `this`)."""

from __future__ import annotations

import codecs
import contextlib
import io
import random
import re
from collections.abc import Iterator

SEED = 20_240_907
WORD = re.compile(r"\n| ?[^ \n]+")
"""A line end, or a word with the blank before it: joined, the tokens are the text again."""


def zen() -> str:
    """The 19 aphorisms, one a line, without the title."""
    with contextlib.redirect_stdout(io.StringIO()):  # the module prints itself when it is first imported
        import this
    return "".join(line + "\n" for line in codecs.decode(this.s, "rot13").splitlines()[2:])


class Chain:
    """Which token follows which, and how often, in one text read as a ring: so every token has a follower."""

    def __init__(self, text: str) -> None:
        tokens = WORD.findall(text)
        self.followers: dict[str, list[str]] = {}
        for token, follower in zip(tokens, [*tokens[1:], tokens[0]], strict=True):
            self.followers.setdefault(token, []).append(follower)

    def tokens(self, prompt: bytes) -> Iterator[bytes]:
        """What goes on after the prompt's last known word, or from the start of a line. It never ends.

        Equal prompts give equal tokens.
        """
        chance = random.Random(b"%d/%b" % (SEED, prompt))
        token = next((word for word in reversed(self._words(prompt)) if word in self.followers), "\n")
        while True:
            token = chance.choice(self.followers[token])
            yield token.encode()

    @staticmethod
    def _words(prompt: bytes) -> list[str]:
        words = prompt.decode("utf-8", "replace").split()
        return [form for word in words for form in (word, f" {word}")]
