"""One HTTP/1.1 connection: reads, the order of answers, flow control both ways, and time-outs.

Requests of one connection run side by side as far as `pipeline_max` allows; answers leave in the order of requests.

*Reading* pauses while a body waits that nobody wants yet and has reached `UNWANTED_BODY_BYTES`, and while the codec
holds as many unparsed bytes as it may. *Writing*: the next answer waits while the transport is over its high-water
mark; a client that takes nothing for `write_timeout_ms` is cut off.

*The end of the client's bytes* (a half-close) before its answer is there counts as the client having left, as in
nginx and Go: TCP does not tell a half-close from a close, and the promise that the work of a client that left is
cancelled is worth more. What needs no model server is answered at once and so reaches a half-closing client.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, cast

from gateway.core.credentials import NO_PEER, Peer
from gateway.core.errors import GatewayError, Reason
from gateway.edge.http_answer import HttpAnswer, ReadyAnswer
from gateway.edge.http_body import ArrivingBody
from gateway.edge.http_call import HttpCall
from gateway.edge.http_outbox import JOIN_BYTES_MAX, Outbox
from gateway.edge.http_pacing import LINGER_BYTES_MAX, LINGER_S, LINGER_TOTAL_S, PacedConnection
from gateway.edge.http_question import Exchange, exchange_for
from gateway.edge.lazy_timer import FOREVER
from gateway.wire.http1 import (
    AfterResponse,
    BodyChunk,
    Event,
    FormedRequest,
    Phase,
    ProtocolFault,
    RequestEnd,
    RequestHead,
)

if TYPE_CHECKING:
    from gateway.edge.http_server import HttpServer

_log = logging.getLogger("sluice.edge")

TURN_EVENTS_MAX = 64
"""Events of one connection that are handled before the others get their turn: one read may hold thousands of small
requests, and those that need no model server are answered at once."""
_UNREAD = frozenset({Phase.HEAD, Phase.BODY, Phase.DRAIN})


class HttpConnection(PacedConnection):
    """Drives one codec. Made by `HttpServer` for each accepted connection."""

    __slots__ = (
        "_dropped_bytes",
        "_ended",
        "_faulted",
        "_handling",
        "_loop",
        "_open",
        "_outbox",
        "_peer",
        "_placed",
        "_write_paused",
        "_yielded",
    )

    def __init__(self, server: HttpServer) -> None:
        super().__init__(server)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: deque[Exchange | ReadyAnswer] = deque()
        self._handling = False
        self._yielded = False
        """Requests that have come wait for this connection's next turn."""
        self._ended = False
        """The client's bytes have ended, and what of them waits for a turn comes first."""
        self._outbox = Outbox(server.kit.budget, lambda: self._give_up("slow_reader"))
        self._peer: Peer = NO_PEER
        self._placed: Exchange | None = None
        """Whose body the next bytes are, which are received straight to their place in it."""
        self._write_paused = False
        self._dropped_bytes = 0
        self._faulted = False

    # -------------------------------------------------- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without being derived from it
        self._outbox.transport = self._transport
        self._loop = asyncio.get_running_loop()
        self._peer = NO_PEER if self._server.peers is None else self._server.peers.of(transport)
        self._read_s = self._server.clock.now_s()
        if self._server.admit(self):
            self._timer.watch()
        else:
            self._finished = True
            self._transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        reading = self._reading
        place = None if reading is None else reading.place(self._codec.open_bytes - 1)
        if place is None:
            self._placed = None
            return self._server.read_buffer  # all share it: it is read from before anything else happens
        self._placed = reading
        return place

    def buffer_updated(self, nbytes: int) -> None:
        reading = self._placed
        if reading is None:
            self.data_received(bytes(self._server.read_buffer[:nbytes]))
            return
        self._read_s = self._server.clock.now_s()
        self._codec.passed(nbytes)
        try:
            reading.placed(nbytes)
        except Exception as fault:
            self._broken(fault)

    def data_received(self, data: bytes) -> None:
        if self._finished:
            self._drop(len(data))
            return
        clock_s = self._server.clock.now_s
        self._read_s = now_s = clock_s()
        try:
            received = self._codec.receive_request(data)
            if type(received) is tuple:
                self._take_formed(received, now_s)
            elif type(received) is RequestHead:
                self._take_whole(received, now_s)
            else:
                self._handle(received, now_s)  # type: ignore[arg-type]
        except Exception as fault:
            self._broken(fault)

    def eof_received(self) -> bool:
        if self._yielded and not self._finished:
            self._ended = True
            return True
        self._end_of_input()
        return False  # the transport sends what it holds, and closes

    def _end_of_input(self) -> None:
        self._codec.eof()
        self._finished = True
        self._leave()
        if self._transport is not None and self._transport.get_write_buffer_size():
            self._watch_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finished = True
        self._transport = None
        self._outbox.close()
        self._timer.close()
        self._leave()
        self._server.closed(self)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._outbox.stuck()
        if self._outbox.transport is not None:
            self._watch_writing()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._outbox.unstuck()
        if self._finished:
            self._watch_writing()  # what is left of the last answer may still get stuck
            return
        self._write_deadline_s = FOREVER
        if not self._handling:
            try:
                self._handle([], self._server.clock.now_s())
            except Exception as fault:
                self._broken(fault)

    # --------------------------------------------------------------- input

    def _handle(self, events: list[Event], now_s: float) -> None:
        """Take events, write what has become ready, and go on with what the codec held back for it."""
        self._handling = True
        self._outbox.hold()
        try:
            handled = 0
            while True:
                for event in events:
                    self._take(event, now_s)
                # The codec holds back what follows a head until it is asked for: ask as long as something comes.
                moved = self._advance()
                if self._finished or not (moved or events):
                    break
                handled += len(events)
                if handled >= TURN_EVENTS_MAX and self._codec.held_bytes:
                    self._yield_turn()
                    break
                events, now_s = self._resumed()
        finally:
            self._handling = False
            self._outbox.release()
        if not self._finished:
            self._regulate(now_s)

    def _yield_turn(self) -> None:
        if not self._yielded:
            self._yielded = True
            assert self._loop is not None
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """The next turn."""
        self._yielded = False
        if self._finished:
            return
        try:
            self._handle(*self._resumed())
        except Exception as fault:
            self._broken(fault)
        if self._ended and not self._yielded and not self._finished:
            self._end_of_input()
            if self._transport is not None:
                self._transport.close()

    def _resumed(self) -> tuple[list[Event], float]:
        """What the codec held back and now gives, and when its first byte came at the latest."""
        events: list[Event] = [] if self._finished else self._codec.resume()
        arrived_s = self._held_s or self._read_s
        if events:
            self._held_s = self._read_s
        return events, arrived_s

    def _take(self, event: Event, now_s: float) -> None:
        kind = type(event)
        if kind is RequestHead:
            arrived_s, self._head_s = self._head_s or now_s, 0.0
            self._begin(event, arrived_s)  # type: ignore[arg-type]
        elif kind is BodyChunk:
            if self._reading is not None:
                self._reading.feed(event.data)  # type: ignore[union-attr]
        elif kind is RequestEnd:
            if self._reading is not None:
                self._reading.end_body()
                self._reading = None
        else:
            assert isinstance(event, ProtocolFault)
            self._fault(event)

    def _take_whole(self, head: RequestHead, now_s: float) -> None:
        """The usual request: it came alone and whole. What `_handle` makes of its three events, in one step."""
        self._begin(head, now_s)
        exchange = self._reading
        if exchange is not None:
            if head.body:
                exchange.feed(head.body)
            exchange.end_body()
            self._reading = None
        if exchange is None or exchange.answer is not None or self._reading_paused:
            self._handle([], now_s)

    def _take_formed(self, request: FormedRequest, now_s: float) -> None:
        """The same, as far as it is an inference call and its head comes to what others before it came to."""
        form, values, body = request
        server = self._server
        usual = server.usual_calls.of(form)
        client = None if usual is None or self._peer is not NO_PEER else usual.client(values)
        if usual is None or client is None:
            self._take_whole(form.request(values, body), now_s)
            return
        exchange = HttpCall(server.kit, self, usual.words, len(body), usual.match, client, now_s, None)
        self._open.append(exchange)
        self._reading = None
        assert self._loop is not None
        exchange.start(self._loop)
        exchange.take_whole(body)
        if self._reading_paused:
            self._handle([], now_s)

    def _begin(self, head: RequestHead, arrived_s: float) -> None:
        server = self._server
        desk = server.desk
        client = server.reader.read_bytes(head.headers, self._peer)
        server.headers_dropped += client.dropped
        match = desk.match(head)
        refusal = desk.refuse(head, match, client)
        exchange = None if refusal is not None else exchange_for(server, self, head, match, client, arrived_s)
        if exchange is not None:
            self._open.append(exchange)
            self._reading = exchange
            assert self._loop is not None
            exchange.start(self._loop)
            return
        answer = refusal or desk.answer(match, client)
        self._reading = None
        self._open.append(ReadyAnswer(answer))
        server.observer.request_without_call("http", match.route.template if match.route else "", str(answer.status))

    def _fault(self, fault: ProtocolFault) -> None:
        large = fault.status in (413, 414, 431)
        self._server.observer.protocol_fault("http", "too_large" if large else "malformed")
        self._faulted = True
        error = GatewayError(Reason.TOO_LARGE if large else Reason.BAD_REQUEST, fault.reason)
        if self._reading is not None:
            self._reading.fail_body(error, fault.status)
            self._reading = None
            return
        answer = self._server.answers.refused(self._server.reader.new_request_id(), error, status=fault.status)
        self._open.append(ReadyAnswer(answer))
        self._server.observer.request_without_call("http", "", str(fault.status))

    # -------------------------------------------------------------- output

    def may_write(self, call: Exchange) -> bool:
        return bool(self._open) and self._open[0] is call and not self._write_paused and not self._finished

    def write(self, call: Exchange, answer: HttpAnswer) -> None:
        server = self._server
        if not (answer.length > JOIN_BYTES_MAX or self._handling or server.draining or answer.status == 408):
            # As is usual, unless the connection has another request: it just becomes idle.
            data = self._codec.answer(answer.status, answer.block, b"".join(answer.chunks))
            if data:
                call.answered = True
                self._open.popleft()
                self._outbox.emit(data)
                clock_s = server.clock.now_s
                self._read_s = now_s = clock_s()
                if now_s + server.limits.keepalive_idle_ms / 1000 < self._timer.due_s:
                    self._timer.watch()
                return
        self._answer(call, answer)
        self._go_on_reading()

    def begin(self, call: Exchange, answer: HttpAnswer) -> None:
        codec = self._codec
        head = codec.response(answer.status, block=answer.block, close=self._closes(answer.status))
        self._take_over(call)
        # In one write: the client learns of the answer and of its first part together.
        self._outbox.emit(b"".join((head, codec.chunk(b"".join(answer.chunks)))))

    def part(self, call: Exchange, data: bytes) -> None:
        self._outbox.emit(self._codec.chunk(data))

    def end(self, call: Exchange) -> None:
        unread = self._unread()
        self._outbox.emit(self._codec.end())
        self._settle(unread)
        if self._server.draining:
            self.drain()
        self._go_on_reading()

    def _go_on_reading(self) -> None:
        """An answer was written outside `_handle`."""
        if self._handling or self._finished:
            return
        self._read_s = self._server.clock.now_s()
        if self._open or self._codec.held_bytes:
            self._handle(*self._resumed())
        else:
            self._regulate(self._read_s)

    def want_body(self, body: ArrivingBody) -> None:
        if self._open and self._open[0] is body:
            self._outbox.emit(self._codec.continue_100())
        self._read_s = now_s = self._server.clock.now_s()
        self._regulate(now_s)

    def _advance(self) -> bool:
        """Write the answers that are ready, oldest first, until one is not or the client must read first. Whether any
        was written."""
        wrote = False
        while self._open and not self._write_paused and not self._finished:
            oldest = self._open[0]
            if oldest.answer is None:
                oldest.take_turn()
                if oldest.wanted:
                    self._outbox.emit(self._codec.continue_100())
                break
            self._answer(oldest, oldest.answer)
            wrote = True
        return wrote

    def _answer(self, exchange: Exchange | ReadyAnswer, answer: HttpAnswer) -> None:
        codec = self._codec
        unread = self._unread()
        close = self._closes(answer.status)
        self._take_over(exchange)
        if answer.length <= JOIN_BYTES_MAX:
            chunks = answer.chunks
            body = b"".join(chunks)
            self._outbox.emit(codec.respond(answer.status, body=body, block=answer.block, close=close))
        else:
            self._outbox.emit(codec.response(answer.status, body_len=answer.length, block=answer.block, close=close))
            if codec.answer_has_body:
                for chunk in answer.chunks:
                    self._outbox.emit(chunk)
        self._settle(unread)

    def _closes(self, status: int) -> bool:
        """Whether an answer with this status is the connection's last."""
        # After a 408 the rest of the body may come at any time or never (RFC 9110 section 15.5.9).
        return status == 408 or (self._server.draining and len(self._open) == 1 and not self._codec.held_bytes)

    def _take_over(self, exchange: Exchange | ReadyAnswer) -> None:
        """The final answer to `exchange` begins."""
        if not isinstance(exchange, ReadyAnswer):
            exchange.answered = True
        if exchange is self._reading:
            self._reading = None

    def _unread(self) -> bool:
        """Whether input is left that nobody will read if the connection is closed now."""
        return self._codec.held_bytes > 0 or self._codec.phase in _UNREAD

    def _settle(self, unread: bool) -> None:
        """The oldest answer is complete; `unread` was so before it."""
        self._open.popleft()
        after = self._codec.after_response()
        if after is AfterResponse.CLOSE:
            self._finish(linger=unread or self._faulted or self._codec.discarded_bytes > 0)
        elif after is AfterResponse.DRAIN:
            self._drain_s = self._server.clock.now_s()

    # -------------------------------------------------------------- ending

    def _finish(self, *, linger: bool) -> None:
        """The last answer was written: send it, and close."""
        self._finished = True
        self._leave()
        self._outbox.flush()
        transport = self._transport
        if transport is None:
            return
        if linger and transport.can_write_eof():
            self._lingering = True
            self._read_s = now_s = self._server.clock.now_s()
            self._linger_until_s = now_s + (LINGER_S if self._server.draining else LINGER_TOTAL_S)
            transport.write_eof()
            self._pause_reading(False)
        else:
            transport.close()
        if transport.get_write_buffer_size():
            self._watch_writing()
        else:
            self._timer.watch()

    def _leave(self) -> None:
        """No answer of what is open will reach the client."""
        self._reading = None
        while self._open:
            exchange = self._open.popleft()
            if not isinstance(exchange, ReadyAnswer):
                exchange.abandon()

    def _drop(self, size: int) -> None:
        """Input while lingering: dropped, up to the bound; then the client is left to wait for the end."""
        self._dropped_bytes += size
        if self._lingering:
            self._read_s = self._server.clock.now_s()
            if self._dropped_bytes > LINGER_BYTES_MAX:
                self._pause_reading(True)

    def _broken(self, fault: Exception) -> None:
        self._server.observer.internal_fault("http")
        _log.error("an internal fault ended a connection", exc_info=fault)
        self.abort()

    def drain(self) -> None:
        """The server stops: an idle connection closes now, others with their last answer."""
        if self._lingering:
            self._linger_until_s = min(self._linger_until_s, self._server.clock.now_s() + LINGER_S)
            self._timer.watch()
        elif not self._finished and not self._open and not self._yielded and self._codec.phase is Phase.IDLE:
            self._finish(linger=False)

    @property
    def owes(self) -> bool:
        """Whether an answer, or a part of one, has not left yet."""
        transport = self._transport
        return bool(self._open) or (transport is not None and transport.get_write_buffer_size() > 0)

    def cut(self, error: GatewayError) -> None:
        """The time for draining is over: calls end with `error`, what is not a call is dropped."""
        if self._finished or not self._open:
            self.abort()
            return
        for exchange in tuple(self._open):
            if not isinstance(exchange, ReadyAnswer):
                exchange.cut(error)
