"""State of one server-side HTTP/1.1 connection. The package's docstring says how it is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from gateway.wire.http1.chunked import COPY_MAX_BYTES, ChunkedBody, piece
from gateway.wire.http1.events import REQUEST_END, BodyChunk, Event, ProtocolFault, Refusal, RequestHead
from gateway.wire.http1.forms import HeadForm, HeadForms
from gateway.wire.http1.head import parse_head, safe_head_bytes
from gateway.wire.http1.limits import Http1Limits
from gateway.wire.http1.response import (
    CONTINUE_100,
    LAST_CHUNK,
    STATUS_LINES,
    Http1UsageError,
    header_block,
    status_line,
)
from gateway.wire.http1.scan import HeadCollector
from gateway.wire.http1.states import AfterResponse, Eof, Exchange, Phase, WholeExchange, exchange_of

# A driver that was told to pause may still be handed reads that were under way.
_HOLD_SLACK_BYTES = 1 << 20

_HEAD, _LENGTH, _CHUNKED, _CLOSED = range(4)
_BODILESS = frozenset({204, 304})

_CR = 0x0D
_forms = HeadForms()
"""Of all connections."""

FormedRequest = tuple[HeadForm, list[str], bytes | memoryview]
"""A whole request: its form, the values in its head that vary, and its body."""


class Http1Server:
    """The codec of one connection."""

    __slots__ = (
        "_body",
        "_ended",
        "_form",
        "_heads",
        "_limits",
        "_more",
        "_open",
        "_reading",
        "_rest",
        "_rest_pos",
        "_safe_head_bytes",
        "_state",
        "discarded_bytes",
    )

    def __init__(self, limits: Http1Limits) -> None:
        self._limits = limits
        self._safe_head_bytes = safe_head_bytes(limits)
        self._state = _HEAD
        self._open: deque[Exchange] = deque()  # parsed, answer not finished; the oldest first
        self._reading: Exchange | None = None  # whose body is arriving
        self._body: ChunkedBody | None = None
        self._heads = HeadCollector(limits)
        self._form: HeadForm | None = None  # of the last head that had one; within the limits
        self._rest = b""  # held unparsed from `_rest_pos` on, followed by `_more`
        self._rest_pos = 0
        self._more = bytearray()
        self._ended = False
        self.discarded_bytes = 0  # dropped after a fault or a close

    # ---------------------------------------------------------------- input

    def receive_request(self, data: bytes) -> FormedRequest | RequestHead | list[Event]:
        """As `receive`, but for the usual case: where `data` is one whole request and no other is open, only its head
        comes back, with the `body` in it, and neither BodyChunk nor RequestEnd follows. Of a head that has the form of
        one before it only what differs comes back.
        """
        heads = self._heads
        if self._open or self._rest or self._state != _HEAD or heads.partial or heads.blank_lines or heads.cr_seen:
            return self.receive(data)
        form = self._form
        values = None if form is None else form.values(data)
        if form is None or values is None:
            stop = data.find(b"\r\n\r\n") + 4
            found = None if not 4 <= stop <= self._safe_head_bytes else _forms.find(data, stop)
            if found is None or found[0].count > self._limits.header_count_max:
                return self._receive_head(data, stop)
            form, values = found
            self._form = form
        start = form.size
        size = len(data) - start
        if size > self._limits.body_max_bytes:
            return self._run(data, 0)
        self._open.append(WholeExchange())
        return form, values, data[start:] if size <= COPY_MAX_BYTES else memoryview(data)[start:]

    def _receive_head(self, data: bytes, stop: int) -> RequestHead | list[Event]:
        """`receive_request` for a head that ends at `stop`, below 4 for none, and has to be read."""
        if stop < 4 or data[0] <= _CR:
            return self._run(data, 0)
        head = data[:stop]
        try:
            request = parse_head(head, self._limits, self._safe_head_bytes)
        except Refusal:
            return self._run(data, 0)  # which makes an event of it
        size = len(data)
        if request.chunked or request.expect_continue or (request.content_length or 0) != size - stop:
            return self._run(data, stop, request)
        _forms.learn(head, request)
        request.body = piece(data, stop, size) if size > stop else b""
        exchange = exchange_of(request)
        self._open.append(exchange)
        exchange.remaining = 0
        exchange.complete = True
        if exchange.close:
            self._state = _CLOSED  # behind it nothing is a request
        return request

    def receive(self, data: bytes) -> list[Event]:
        """Take the bytes of one read; return what they complete, or a part of it: then `resume()` has the rest.

        A RequestHead whose body follows is always the last event of its list. Raises nothing for whatever a client
        sends; Http1UsageError if the driver reads on far beyond `paused`.
        """
        if self.held_bytes:
            if self.held_bytes + len(data) > self._limits.hold_max_bytes + _HOLD_SLACK_BYTES:
                raise Http1UsageError("bytes were fed although the connection is paused")
            self._more += data
            return self.resume()
        return self._run(data, 0)

    def resume(self) -> list[Event]:
        """What held bytes complete: call it until it returns nothing, after `receive()` and `after_response()`."""
        if self._state == _HEAD and len(self._open) >= self._limits.pipeline_max:
            return []
        events = self._run(*self._take_held()) if self.held_bytes else []
        if self._ended and self._is_partial():
            self._fail(Refusal(400, "the connection ended inside a request"), False, events)
        return events

    def eof(self) -> Eof:
        """The client has sent its last byte.

        After HALF_CLOSED answer the complete requests as usual, `resume()` included: the last answer closes. A
        request without its RequestEnd (there can be one behind them) is void.
        """
        self._ended = True
        if self._state == _CLOSED:
            return Eof.HALF_CLOSED if self._open else Eof.CLEAN
        if self._is_partial():
            truncated = self._reading
            self._close_input()
            if truncated is not None and truncated.answered:  # nobody wanted the rest
                truncated.close = True
                return Eof.HALF_CLOSED if self._open else Eof.CLEAN
            if truncated is not None and len(self._open) > 1:
                self._open.pop()
                return Eof.HALF_CLOSED
            return Eof.HALF_CLOSED if truncated is None and self._open else Eof.TRUNCATED
        return Eof.HALF_CLOSED if self._open or self.held_bytes else Eof.CLEAN

    @property
    def held_bytes(self) -> int:
        """Bytes of later requests that are kept unparsed."""
        return len(self._rest) - self._rest_pos + len(self._more)

    @property
    def paused(self) -> bool:
        """Whether the driver must stop reading until an answer has been finished and `resume()` called."""
        return self.held_bytes >= self._limits.hold_max_bytes

    @property
    def open_bytes(self) -> int:
        """How many bytes of a body of known length come next, if somebody wants them. All but the last may be received
        past the codec, straight to where they belong: say so by `passed`.
        """
        exchange = self._reading
        if exchange is None or self._state != _LENGTH or exchange.answered or self.held_bytes:
            return 0
        return exchange.remaining

    def passed(self, size: int) -> None:
        """So many bytes of the body, fewer than `open_bytes`, were received past the codec."""
        exchange = self._reading
        assert exchange is not None
        assert size < exchange.remaining
        exchange.remaining -= size
        exchange.awaits_continue = False

    @property
    def phase(self) -> Phase:
        """What the connection waits for now."""
        if self._state == _CLOSED:
            return Phase.CLOSED
        if self._reading is not None:
            return Phase.DRAIN if self._reading.answered else Phase.BODY
        if self._heads.partial:
            return Phase.HEAD
        return Phase.ANSWER if self._open else Phase.IDLE

    def _run(self, data: bytes, pos: int, request: RequestHead | None = None) -> list[Event]:
        """Take the bytes from `pos`. `request` is one whose head has been taken already."""
        events: list[Event] = []
        size = len(data)
        head: bytes | None = None
        try:
            while pos < size or request is not None:
                if self._state == _HEAD:
                    if len(self._open) >= self._limits.pipeline_max:
                        self._rest, self._rest_pos = data, pos
                        break
                    if request is None:
                        head = None
                        head, pos = self._heads.take(data, pos)
                        if head is not None:
                            request = parse_head(head, self._limits, self._safe_head_bytes)
                    if request is not None:
                        self._begin(request, events)
                        request = None
                    if self._reading is not None and pos < size:
                        # The driver may want to answer before it sees any of the body.
                        self._rest, self._rest_pos = data, pos
                        break
                elif self._state == _LENGTH:
                    pos = self._take_counted(data, pos, events)
                elif self._state == _CHUNKED:
                    pos = self._take_chunked(data, pos, events)
                else:
                    self.discarded_bytes += size - pos
                    break
        except Refusal as refusal:
            at_fault = head or self._heads.partial  # if a head is at fault, it is one of these
            self._fail(refusal, at_fault.startswith(b"HEAD "), events)
        return events

    def _begin(self, request: RequestHead, events: list[Event]) -> None:
        exchange = exchange_of(request)
        self._open.append(exchange)
        events.append(request)
        self._reading = exchange
        if request.chunked:
            self._body = ChunkedBody(self._limits)
            self._state = _CHUNKED
        elif exchange.remaining:
            self._state = _LENGTH
        else:
            self._end_request(exchange, events)

    def _take_counted(self, data: bytes, pos: int, events: list[Event]) -> int:
        exchange = self._reading
        assert exchange is not None
        stop = min(len(data), pos + exchange.remaining)
        exchange.remaining -= stop - pos
        exchange.awaits_continue = False  # it did not wait
        if not exchange.answered:
            events.append(BodyChunk(piece(data, pos, stop)))
        if exchange.remaining == 0:
            self._end_request(exchange, events)
        return stop

    def _take_chunked(self, data: bytes, pos: int, events: list[Event]) -> int:
        exchange, body = self._reading, self._body
        assert exchange is not None
        assert body is not None
        exchange.awaits_continue = False
        pieces: list[bytes | memoryview] = []
        try:
            pos = body.feed(data, pos, pieces)
        finally:
            # One event per read however many chunks it held; bytes in front of a fault count too.
            if pieces and not exchange.answered:
                events.append(BodyChunk(pieces[0] if len(pieces) == 1 else b"".join(pieces)))
        if body.done:
            self._body = None
            self._end_request(exchange, events)
        return pos

    def _end_request(self, exchange: Exchange, events: list[Event]) -> None:
        exchange.complete = True
        exchange.awaits_continue = False
        self._reading = None
        # Behind a request that asked for the end of the connection nothing is a request.
        self._state = _CLOSED if exchange.close else _HEAD
        if not exchange.answered:
            events.append(REQUEST_END)

    def _fail(self, refusal: Refusal, bodiless: bool, events: list[Event]) -> None:
        exchange = self._reading
        self._close_input()
        if exchange is None:
            exchange = Exchange()
            exchange.bodiless = bodiless
            self._open.append(exchange)
        # Else its answer has not begun: once it has, a body that can still be at fault is dropped unread.
        exchange.close = True
        exchange.awaits_continue = False
        exchange.complete = True
        events.append(ProtocolFault(refusal.status, refusal.reason))

    def _close_input(self) -> None:
        """Nothing more is parsed; whatever comes or is held is dropped."""
        self.discarded_bytes += len(self._heads.partial) + self.held_bytes
        self._state = _CLOSED
        self._reading = None
        self._body = None
        self._heads.partial.clear()
        self._more.clear()
        self._rest, self._rest_pos = b"", 0

    def _take_held(self) -> tuple[bytes, int]:
        """The held bytes and where they start; they are not held any more."""
        data, pos = self._rest, self._rest_pos
        if self._more:
            data, pos = data[pos:] + self._more, 0
            self._more.clear()
        self._rest, self._rest_pos = b"", 0
        return data, pos

    def _is_partial(self) -> bool:
        """Whether a request has begun that the bytes so far do not complete."""
        return (self._reading is not None or bool(self._heads.partial)) and not self.held_bytes

    # --------------------------------------------------------------- output

    def continue_100(self) -> bytes:
        """The interim answer that asks for the body; empty if none is due: not expected, given already, too late."""
        if not self._open or not self._open[0].awaits_continue or self._open[0].answered or self.held_bytes:
            return b""
        self._open[0].awaits_continue = False
        return CONTINUE_100

    def answer(self, status: int, block: bytes, body: bytes) -> bytes:
        """`respond` and `after_response` in one, for the usual case: the only request there is, whole, whose answer
        has a body and keeps the connection. Nothing, and nothing has happened, if it is not that.
        """
        opened = self._open
        if len(opened) != 1 or self._state != _HEAD or self._ended or self._rest or self._heads.partial:
            return b""
        exchange = opened[0]
        if not exchange.usual or not exchange.complete or exchange.answered or exchange.close or status in _BODILESS:
            return b""
        opened.popleft()
        line = STATUS_LINES[status] if status in STATUS_LINES else status_line(status)
        return b"".join((line, block, b"content-length: %d\r\n\r\n" % len(body), body))

    def respond(
        self,
        status: int,
        headers: Iterable[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        *,
        block: bytes = b"",
        close: bool = False,
    ) -> bytes:
        """A whole answer in one piece. Parameters as `response`."""
        head = self.response(status, headers, len(body), block=block, close=close)
        return head if self._open[0].bodiless else head + body

    def response(
        self,
        status: int,
        headers: Iterable[tuple[bytes, bytes]] = (),
        body_len: int | None = None,
        *,
        block: bytes = b"",
        close: bool = False,
    ) -> bytes:
        """The head of the final answer to the oldest open request; the body follows.

        With `body_len` in bytes the driver writes exactly as many itself (none if `answer_has_body` is false);
        without, it passes the body through `chunk()` and ends it by `end()`. `block` is a constant made by
        `header_block`. `close` ends the connection after this answer. Raises Http1UsageError if nothing is open, if a
        final answer was given, or if a header is not allowed.
        """
        if not self._open:
            raise Http1UsageError("there is no request to answer")
        exchange = self._open[0]
        if exchange.answered:
            raise Http1UsageError("the request has already been given its final answer")
        line = status_line(status)
        lines = header_block(headers) if headers else b""
        exchange.answered = True
        if close or not exchange.complete or self._ended:
            self._settle_rest(exchange, close)
        if status in _BODILESS:
            exchange.bodiless = True
            framing = b""
        elif body_len is not None:
            framing = b"content-length: %d\r\n" % body_len
        elif exchange.bodiless:
            framing = b""
        else:
            exchange.streaming = True
            if exchange.http_minor:
                exchange.chunked_answer = True
                framing = b"transfer-encoding: chunked\r\n"
            else:  # an HTTP/1.0 client knows no chunks: the body ends with the connection
                exchange.close = True
                framing = b""
        if exchange.close:
            if self._state != _CLOSED:
                self._close_input()
            return b"%b%b%b%bconnection: close\r\n\r\n" % (line, block, lines, framing)
        if exchange.http_minor == 0:
            return b"%b%b%b%bconnection: keep-alive\r\n\r\n" % (line, block, lines, framing)
        return b"%b%b%b%b\r\n" % (line, block, lines, framing)

    def _settle_rest(self, exchange: Exchange, close: bool) -> None:
        """An answer starts while its request is incomplete, or the connection is to end: keep, drain or close."""
        if self._reading is exchange and self.held_bytes:
            self._drop_held_body(exchange)
        last = self._ended and not self.held_bytes and len(self._open) == 1
        undrainable = not exchange.complete and (
            # A body withheld for a 100 that never comes may or may not be sent: there is no telling what follows.
            exchange.awaits_continue or exchange.remaining < 0 or exchange.remaining > self._limits.drain_max_bytes
        )
        if close or last or undrainable:
            exchange.close = True
        exchange.awaits_continue = False

    def _drop_held_body(self, exchange: Exchange) -> None:
        data, pos = self._take_held()
        try:
            take = self._take_counted if self._state == _LENGTH else self._take_chunked
            pos = take(data, pos, [])
        except Refusal:
            exchange.close = True
        else:
            self._rest, self._rest_pos = data, pos

    @property
    def answer_has_body(self) -> bool:
        """Whether the body of the answer under way goes on the wire: not for HEAD, 204 and 304."""
        return bool(self._open) and not self._open[0].bodiless

    def chunk(self, data: bytes) -> bytes:
        """Part of a body of unknown length, framed. Empty data gives nothing: an empty chunk would end the body."""
        exchange = self._streaming()
        if not data or exchange.bodiless:
            return b""
        if exchange.chunked_answer:
            return b"%x\r\n%b\r\n" % (len(data), data)
        return data

    def end(self) -> bytes:
        """The end of a body of unknown length. Without it `after_response()` says CLOSE: the client sees the loss."""
        exchange = self._streaming()
        exchange.streaming = False
        return LAST_CHUNK if exchange.chunked_answer else b""

    def _streaming(self) -> Exchange:
        if not self._open or not self._open[0].answered:
            raise Http1UsageError("there is no answer under way")
        exchange = self._open[0]
        if not exchange.streaming and not exchange.bodiless:
            raise Http1UsageError("this answer has a declared length or has ended")
        return exchange

    def after_response(self) -> AfterResponse:
        """The answer to the oldest request is complete (or given up): what becomes of the connection."""
        if not self._open or not self._open[0].answered:
            raise Http1UsageError("no answer has been given")
        exchange = self._open.popleft()
        if exchange.close or exchange.streaming:
            if self._state != _CLOSED:
                self._close_input()
            self._open.clear()
            return AfterResponse.CLOSE
        if not exchange.complete:
            return AfterResponse.DRAIN
        if self._ended and not self._open and not self.held_bytes:
            return AfterResponse.CLOSE
        return AfterResponse.KEEP
