"""The server side of HTTP/1.1 as a codec without I/O, on httptools (llhttp).

Bytes go in, events come out; answers go in, bytes come out. There is no clock, no socket and no task here: the
driver (an asyncio.Protocol in `edge`) owns the transport and every time-out.

How a driver uses it::

    server = Http1Server(limits)

    def data_received(data):
        pump(server.receive(data))              # never raises for anything a client can send

    def pump(events):
        while events:
            for event in events:
                kind = type(event)
                if kind is RequestHead:     # gate and route; answer() at once, or, if event.expect_continue:
                    transport.write(server.continue_100())
                elif kind is BodyChunk:     # event.data: bytes or memoryview
                elif kind is RequestEnd:    # the request is whole: dispatch it, or answer() at once
                elif kind is ProtocolFault: # answer(event.status, ...); the codec will say CLOSE
            events = server.resume()
        pause or resume reading by server.paused

    def answer(status, headers, body):
        transport.write(server.respond(status, headers, body))
        if server.after_response() is AfterResponse.CLOSE:
            linger and close
        # else, unless called from within pump(): pump(server.resume())

A RequestHead whose body follows is the last event of its list, even if more has arrived: so a driver may answer it on
the spot and will see nothing of a body that it has refused. (`resume()` until nothing comes is what picks up the rest.)

The usual request needs less: `receive_request(data)` may give one head with its whole body in it in the place of a
list, or even only what differs from a head before it (`forms.py`; `form.request(values, body)` makes the head of it),
and `answer(status, block, body)` makes an answer and ends it, where nothing but going on follows. These are short ways
and no other rules: what they do not take goes the long way.

A streamed answer is `response(status, headers)` (length unknown) or `response(status, headers, body_len=n)`, then
`chunk(data)` for each part and `end()`. The codec picks chunked coding, or "ends with the connection" for an
HTTP/1.0 client, and drops the body of answers that have none (HEAD, 204, 304).

**Framing.** A head is collected up to its blank line and given whole to a *fresh* llhttp parser, which checks the
grammar of the header section and nothing else; bodies are framed here (by counting, or by `ChunkedBody`). So:

* the parser never sees a byte of a body or of the next request, and the codec can stop at any message boundary
  (httptools cannot pause, and runs all callbacks of a feed at once);
* `on_url` in pieces, trailers that arrive as headers, the stop at an `Upgrade` header and the state after an error,
  traps of httptools, cannot occur. A request with `Upgrade: h2c` is answered as plain HTTP/1.1;
* how the input was split into reads cannot change the events (body chunks may be cut differently).

A parser object costs 0.2 us. Request lines and hosts that were found good are remembered and not judged again. Faults
that can be known before the blank line (a line too long, a control byte, an unsupported version) are raised as soon as
their byte has been seen; among several the first by position wins.

**Pipelining.** At most `pipeline_max` requests are parsed but unanswered; what follows them is held unparsed until
`after_response()` has freed a place and `resume()` is called. Answers are for the oldest unanswered request, always.
Held bytes may reach `hold_max_bytes`; then `paused` is true and the driver must stop reading. Below that it should
keep reading, or it will not see the client leave. So memory per connection is at most `head_max_bytes` +
`hold_max_bytes` + one read, besides the events handed out.

**Early answers.** An answer that starts before its request is complete settles what happens to the rest of the body:
a known rest of at most `drain_max_bytes` is thrown away unseen and the connection kept (DRAIN until then); anything
else (longer, chunked, or withheld behind an Expect: 100-continue that was not granted) announces `connection: close`.
In both cases no further BodyChunk or RequestEnd is emitted for that request, and no byte of it is ever parsed as a
request.

**After CLOSE** the driver should send its bytes, half-close, read and drop for a short time, and only then close: a
close with unread input makes the kernel send RST, which can destroy the answer on its way. `receive()` drops
everything from then on.

Decisions where RFC 9112 leaves a choice: bare LF and bare CR, obs-fold, repeated Content-Length (even equal),
Content-Length with Transfer-Encoding, Transfer-Encoding in HTTP/1.0, whitespace after a chunk size, an empty Host in
HTTP/1.1 and a fragment in the target are refused (400); transfer codings other than exactly `chunked` 501; methods
other than GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH and TRACE 501; versions other than 1.0 and 1.1 505; an
expectation other than 100-continue 417. An absolute-form target is accepted: its authority is checked for form and
dropped, `target` is the rest. `*` is accepted with OPTIONS only. Trailers are checked, bounded and dropped. Every
fault closes the connection.
"""

from gateway.wire.http1.events import (
    BodyChunk,
    Event,
    ProtocolFault,
    RequestEnd,
    RequestHead,
)
from gateway.wire.http1.forms import HeadForm
from gateway.wire.http1.limits import Http1Limits
from gateway.wire.http1.response import Http1UsageError, header_block
from gateway.wire.http1.server import FormedRequest, Http1Server
from gateway.wire.http1.states import AfterResponse, Eof, Phase

__all__ = [
    "AfterResponse",
    "BodyChunk",
    "Eof",
    "Event",
    "FormedRequest",
    "HeadForm",
    "Http1Limits",
    "Http1Server",
    "Http1UsageError",
    "Phase",
    "ProtocolFault",
    "RequestEnd",
    "RequestHead",
    "header_block",
]
