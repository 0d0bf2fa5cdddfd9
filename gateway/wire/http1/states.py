"""The states of a connection and of one request on it."""

from __future__ import annotations

import enum


class AfterResponse(enum.Enum):
    """What becomes of the connection after an answer."""

    KEEP = "keep"  # go on with resume()
    DRAIN = "drain"  # the same, but the rest of this request's body still arrives, and is dropped by the codec
    CLOSE = "close"


class Eof(enum.Enum):
    """What the end of the client's bytes means."""

    CLEAN = "clean"  # between requests: just close
    TRUNCATED = "truncated"  # inside a request: abandon it and close
    HALF_CLOSED = "half_closed"  # complete requests await their answers; the client may still read them


class Phase(enum.Enum):
    """What the connection waits for: which time-out applies."""

    IDLE = "idle"  # the first byte of a request
    HEAD = "head"  # the rest of a head
    BODY = "body"  # the rest of a body that somebody wants
    DRAIN = "drain"  # the rest of a body that nobody wants
    ANSWER = "answer"  # this side's answer
    CLOSED = "closed"  # nothing: all input is dropped


class Exchange:
    """One parsed request until its answer is complete."""

    __slots__ = (
        "answered",
        "awaits_continue",
        "bodiless",
        "chunked_answer",
        "close",
        "complete",
        "http_minor",
        "remaining",
        "streaming",
    )

    def __init__(self, bodiless: bool, http_minor: int, close: bool, remaining: int, awaits_continue: bool) -> None:
        self.bodiless = bodiless  # the answer has no body: HEAD, later 204 and 304
        self.http_minor = http_minor
        self.close = close
        self.remaining = remaining  # bytes of body still to come; -1 for a chunked one
        self.awaits_continue = awaits_continue
        self.complete = False  # all of the request has been seen
        self.answered = False  # the head of the final answer has been made
        self.streaming = False  # chunk() and end() are due
        self.chunked_answer = False
