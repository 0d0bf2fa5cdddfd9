"""The states of a connection and of one request on it."""

from __future__ import annotations

import enum

from gateway.wire.http1.events import RequestHead


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
    """One parsed request until its answer is complete.

    As it is made it stands for the usual request: HTTP/1.1, kept alive, not HEAD, without a body to come. What differs
    is set; so the usual one costs next to nothing, which is why this class has no slots.
    """

    usual = True  # none of the next three is set
    bodiless = False  # the answer has no body: HEAD, later 204 and 304
    http_minor = 1
    close = False
    remaining = 0  # bytes of body still to come; -1 for a chunked one
    awaits_continue = False
    complete = False  # all of the request has been seen
    answered = False  # the head of the final answer has been made
    streaming = False  # chunk() and end() are due
    chunked_answer = False


class WholeExchange(Exchange):
    """Of a usual request that has been seen whole."""

    complete = True


def exchange_of(request: RequestHead) -> Exchange:
    """The exchange that `request` begins."""
    exchange = Exchange()
    if request.method == b"HEAD" or not request.keep_alive or request.http_minor != 1:
        exchange.usual = False
        exchange.bodiless = request.method == b"HEAD"
        exchange.close = not request.keep_alive
        exchange.http_minor = request.http_minor
    if request.chunked:
        exchange.remaining = -1
    elif request.content_length:
        exchange.remaining = request.content_length
    if request.expect_continue:
        exchange.awaits_continue = True
    return exchange
