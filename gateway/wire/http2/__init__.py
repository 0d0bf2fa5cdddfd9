"""HTTP/2 (RFC 9113) as a codec without I/O: one for both roles, server to gRPC clients and client to Triton.

Bytes go in, callbacks of streams come out; the output is a list that the driver empties once per turn of its loop.
There is no clock, no socket and no task: the driver (an asyncio.Protocol in `edge` or `fleet`) owns the transport and
every time-out.

How a driver uses it::

    connection = Http2Server(limits, make_stream)         # or Http2Client(limits)
    connection.on_output = schedule                       # loop.call_soon(flush), unless scheduled or paused
    schedule()                                            # SETTINGS (and the client's preface) wait from the start

    def data_received(data):
        connection.receive(data, clock.now_s())           # calls streams, never raises for what a peer sends
        if connection.closed: flush and close

    def flush():
        scheduled = False
        transport.writelines(connection.take())           # or write(b"".join(...))
        if connection.closed: close
        elif connection.wants_write: schedule()           # more of what was queued, unless the transport said pause

    pause_writing: stop flushing; a server stops reading as well: so nothing can be provoked that it cannot send
    resume_writing: read again, schedule()
    connection_lost: connection.lost("...")

`closed` turns true by a fault of the peer (`fault` says which), by `goaway()`, by `lost()`, and when a drain is
complete: write what `take()` gives, then close. It may turn true in `receive()`, in `take()`, or by whatever ends the
last stream. After the last bytes shut down writing, and read and drop for a moment: a close with unread input makes
the kernel send RST, which can destroy what is on its way. Time-outs that are the driver's: the first SETTINGS,
`mid_frame`, `settings_acknowledged`, a PING's answer, and `finish_drain()` some seconds after `drain()`.

How a user uses it: he subclasses `Stream` (see there for the callbacks) and calls, at any time::

    server:  connection.send_message(stream, head, data, tail)   # a whole answer: the fast path
             connection.send_headers(stream, head, False)        # or in parts: a stream of messages
             connection.send_data(stream, data, False)           # False: wait for on_writable()
             connection.send_headers(stream, tail, True)
    client:  connection.open(stream, head, data, True)           # a whole request: the fast path; may raise
             connection.open(stream, head, data, False), connection.send_data(stream, data, end)
    both:    connection.reset(stream, ErrorCode.CANCEL)
             connection.acknowledge(stream, size)                # payload has been taken: the peer may send more
             connection.grow_window(stream, size)                # a large message is welcome

`head` and `tail` are encoded header blocks: joined `literal(name, value)`, or, for heads only, made by
`connection.encoder`. A block of the encoder must be sent, at once and whatever happens, or the two ends no longer agree
about its table. So: no such block for a stream that `is_over`; none for trailers, which may have to wait behind queued
data while blocks of other streams overtake them; and a client's head is made when its stream really begins (`open`
takes a function for that).

**A stream ends when the server has said its last word.** END_STREAM of the answer ends it for both sides; if the
request was unfinished then, RST_STREAM(NO_ERROR) is added (RFC 9113 section 8.1; gRPC demands that nothing follows
trailers).

**Windows.** The window of the connection is returned by the connection as frames arrive, those of the streams as
their users acknowledge: who does not read stalls nobody else, and holds at most a stream's window.

**Faults.** A stream error gives RST_STREAM and on_reset; a connection error gives GOAWAY, on_reset for every stream,
and `closed`. Frames for streams that ended early by RST_STREAM of this side are ignored, as those may be under way; a
client ignores everything for streams that are over, since Triton repeats its trailers (kept within the bound of
frames that carry nothing). Header blocks are always decoded. Floods: see `Http2Limits`.

Decisions where RFC 9113 leaves a choice: priorities are ignored; HTTP/1.1 upgrade (h2c) is not spoken, the preface
comes first; `content-length` is left to the user; a frame that is too long ends the connection whatever its type; a
field value may begin or end with blanks (gRPC). Interim (1xx) responses are swallowed.
"""

from gateway.wire.http2.client import Http2Client
from gateway.wire.http2.connection import Http2Connection, Http2Statistics
from gateway.wire.http2.errors import CONNECTION_LOST, ErrorCode, Http2Fault, Http2UsageError, StreamUnavailable
from gateway.wire.http2.limits import Http2Limits
from gateway.wire.http2.server import Http2Server
from gateway.wire.http2.stream import Stream

__all__ = [
    "CONNECTION_LOST",
    "ErrorCode",
    "Http2Client",
    "Http2Connection",
    "Http2Fault",
    "Http2Limits",
    "Http2Server",
    "Http2Statistics",
    "Http2UsageError",
    "Stream",
    "StreamUnavailable",
]
