"""What one request of `streamer` asks for, and the tokens of its answer: plain functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

ERROR_CODES = (
    "UNKNOWN",
    "INTERNAL",
    "NOT_FOUND",
    "INVALID_ARG",
    "UNAVAILABLE",
    "UNSUPPORTED",
    "ALREADY_EXISTS",
    "CANCELLED",
)
"""All codes that a Python model of Triton can answer with."""

CRASH = "CRASH"
FINAL_USUAL, FINAL_APART, FINAL_JOINED = "usual", "apart", "joined"
DEFAULT_TOKENS = 16
DELAY_MAX_MS = 60_000.0


class TokenSource(Protocol):
    """A model of language."""

    def tokens(self, prompt: bytes) -> Iterator[bytes]:
        """What follows the prompt, without end."""
        ...


@dataclass(frozen=True, slots=True)
class Order:
    """One request; its fields are the model's inputs.

    `max_tokens` None is the default of the kind of text. `first_delay_ms` passes before the first response, `delay_ms`
    before each further one. At response index `fail_at` (-1 none) the answer ends with an error of code `fail_with`
    (one of ERROR_CODES), or the model's process ends (CRASH). `final` says whether the end of the answer comes apart,
    as a flag without content, or joined to the last response; usual is apart after a token and joined to an error. An
    answer without responses always has it apart.

    An error whose end comes apart ends this Triton itself (SIGSEGV, seen on 2.51) if the caller's gRPC stream carries
    the metadata `triton_grpc_error: true`.
    """

    text: bytes
    max_tokens: int | None = None
    first_delay_ms: float = 0.0
    delay_ms: float = 0.0
    fail_at: int = -1
    fail_with: str = "INVALID_ARG"
    final: str = FINAL_USUAL

    def __post_init__(self) -> None:
        """Raises ValueError naming the input that makes no sense."""
        if self.max_tokens is not None and self.max_tokens < 0:
            raise ValueError(f"max_tokens is {self.max_tokens}; it must not be negative")
        for name, delay_ms in (("first_delay_ms", self.first_delay_ms), ("delay_ms", self.delay_ms)):
            if not 0 <= delay_ms <= DELAY_MAX_MS:  # false for NaN too
                raise ValueError(f"{name} is {delay_ms:g}; it must lie between 0 and {DELAY_MAX_MS:g}")
        if self.fail_at < -1:
            raise ValueError(f"fail_at is {self.fail_at}; it must be a response index, or -1 for none")
        if self.fail_with not in (*ERROR_CODES, CRASH):
            raise ValueError(f"fail_with is {self.fail_with!r}; it may be {', '.join(ERROR_CODES)} or {CRASH}")
        if self.final not in (FINAL_USUAL, FINAL_APART, FINAL_JOINED):
            raise ValueError(f"final is {self.final!r}; it may be {FINAL_USUAL}, {FINAL_APART} or {FINAL_JOINED}")

    def tokens(self, source: TokenSource) -> Iterator[bytes]:
        """The answer's tokens, one a response.

        A text that begins with `echo:`, `chars:` or `bytes:` is given back after that prefix, verbatim: a line (with
        its end), a character (a byte that is not UTF-8 is one too), or a byte at a time, whole unless max_tokens
        says less. Any other text is a prompt that `source` goes on with.
        """
        kind, colon, argument = self.text.partition(b":")
        if colon and kind in (b"echo", b"chars", b"bytes"):
            return islice(_pieces(kind, argument), self.max_tokens)
        return islice(source.tokens(self.text), DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens)


def _pieces(kind: bytes, argument: bytes) -> Iterator[bytes]:
    if kind == b"echo":
        # Not bytes.splitlines, which also takes a carriage return for a line's end.
        *lines, last = argument.split(b"\n")
        yield from (line + b"\n" for line in lines)
        if last:
            yield last
    elif kind == b"chars":
        for character in argument.decode("utf-8", "surrogateescape"):
            yield character.encode("utf-8", "surrogateescape")
    else:
        for number in argument:
            yield bytes([number])
