"""A minimal driver of the codec for property tests: answers each request when it is complete."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from gateway.wire.http1 import (
    AfterResponse,
    BodyChunk,
    Event,
    Http1Limits,
    Http1Server,
    ProtocolFault,
    RequestEnd,
    RequestHead,
)


class Seen(NamedTuple):
    """One request as the driver saw it; `fault` is (status, reason) if it ended in one."""

    method: bytes
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    framing: tuple[int, int | None, bool, bool, bool]
    body: bytes
    complete: bool
    fault: tuple[int, str] | None


def drive(pieces: Iterable[bytes], limits: Http1Limits, *, shortly: bool = False) -> list[Seen]:
    """Feed the pieces, answering 200 to each complete request and its status to each fault. `shortly`: by the short
    ways for the usual request, wherever the codec takes them.
    """
    server = Http1Server(limits)
    seen: list[Seen] = []
    head: RequestHead | None = None
    body = bytearray()

    def finish(complete: bool, fault: ProtocolFault | None) -> None:
        nonlocal head
        why = None if fault is None else (fault.status, fault.reason)
        if head is None:
            seen.append(Seen(b"", b"", (), (0, None, False, False, False), b"", complete, why))
        else:
            framing = (head.http_minor, head.content_length, head.chunked, head.expect_continue, head.keep_alive)
            headers = tuple(head.headers)
            seen.append(Seen(head.method, head.target, headers, framing, bytes(body), complete, why))
        head = None
        body.clear()

    def take(events: list[Event]) -> None:
        nonlocal head
        for event in events:
            if isinstance(event, RequestHead):
                assert head is None
                head = event
            elif isinstance(event, BodyChunk):
                assert head is not None
                assert event.data
                body.extend(event.data)
            elif isinstance(event, RequestEnd):
                assert head is not None
                finish(True, None)
            else:
                assert 400 <= event.status <= 599
                finish(False, event)

    for piece in pieces:
        events = _received(server, piece) if shortly else server.receive(piece)
        while events:
            take(events)
            # With pipeline_max > 1 several may wait; answer them all, oldest first.
            waiting = sum(isinstance(event, RequestEnd | ProtocolFault) for event in events)
            for _ in range(waiting):
                if shortly and server.answer(200, b"", b""):
                    continue
                server.respond(200)
                if server.after_response() is AfterResponse.CLOSE:
                    break
            events = server.resume()
        assert server.held_bytes <= len(piece) + limits.hold_max_bytes
    if head is not None:
        finish(False, None)
    return seen


def _received(server: Http1Server, data: bytes) -> list[Event]:
    """What `receive_request` gives, as the events that it stands for."""
    received = server.receive_request(data)
    if isinstance(received, list):
        return received
    if isinstance(received, tuple):
        form, values, whole = received
        received = form.request(values, whole)
    assert received.body is not None
    body, received.body = bytes(received.body), None
    return [received, *([BodyChunk(body)] if body else []), RequestEnd()]


def feed(server: Http1Server, data: bytes) -> list[Event]:
    """All events that `data` completes, without an answer in between."""
    events = server.receive(data)
    more = events
    while more:
        more = server.resume()
        events += more
    return events


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    """`data` in pieces, cut at the given places (taken modulo its length)."""
    at = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[start:stop] for start, stop in pairwise(at)]
