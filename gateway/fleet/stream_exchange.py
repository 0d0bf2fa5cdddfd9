"""One call over a stream: its request out on a lane, its responses back, and what they teach.

An error inside a stream travels as a text without a code, under a status that says OK: here it becomes the failure
that it is (field case FH-12). A model that reports one may go on; the call has failed all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core.call import Attempt, Call
from gateway.core.codes import Code
from gateway.core.errors import GatewayError
from gateway.core.faults import UpstreamFault, classify, in_stream_fault, to_error
from gateway.core.outcome import Outcome
from gateway.core.reply import Response, StreamReply
from gateway.core.session import Session
from gateway.fleet.connection import Connection
from gateway.fleet.stream_lane import Flow, Lanes
from gateway.wire.kserve.stream_message import StreamedResponse, with_end_wanted

if TYPE_CHECKING:
    from gateway.fleet.transport import ReplicaTransport


class StreamExchange:
    """Made by the transport for one call; lives until its reply is closed."""

    __slots__ = ("_attempt", "_call", "_connection", "_count", "_failed", "_flow", "_sent_s", "_session", "_transport")

    def __init__(
        self,
        transport: ReplicaTransport,
        call: Call,
        session: Session,
        attempt: Attempt,
        connection: Connection,
        sent_s: float,
    ) -> None:
        self._transport = transport
        self._call = call
        self._session = session
        self._attempt = attempt
        self._connection = connection
        self._sent_s = sent_s
        self._failed = False
        self._count = 0
        """Responses that were given out."""
        self._flow: Flow | None = None

    async def begin(self, message: bytes) -> StreamReply:
        """Send the request and wait for the first response. Raises `GatewayError` if an error is all that comes."""
        call, session, connection = self._call, self._session, self._connection
        lanes = session.part(self._transport, Lanes)
        lane = lanes.lane(self._attempt.replica, connection.client, session.metadata, session.deadline_s - self._sent_s)
        connection.enter()
        try:
            self._flow = flow = lane.send(with_end_wanted(message) if call.decoupled else message, call.body_id)
            if call.on_sent is not None:
                call.on_sent()
            first = await self._next()
            if first is not None and first.error is not None and flow.complete:
                error, first.error.response = first.error, first.message
                first = None
                try:
                    raise error
                finally:
                    del error  # which holds this frame: only the garbage collector could free the two
        except BaseException:
            self._release()
            raise
        finished = flow.complete
        if finished:
            # Not only when the caller has taken it, who may have to wait for earlier calls of the stream.
            self._end()
        reply = StreamReply(first, self._next, ordered=not call.decoupled, finished=finished)
        reply.on_close(self._close)
        return reply

    async def _next(self) -> Response | None:
        flow = self._flow
        assert flow is not None
        while True:
            try:
                streamed = await flow.next()
            except UpstreamFault as fault:
                self._transport.lost_model(self._call, self._attempt, self._connection, self._sent_s, fault)
                self._transport.fail(self._call, self._attempt, fault, judged=self._failed, responses=self._count)
            except GatewayError as error:
                if not self._failed:
                    self._transport.broken(self._call, self._attempt, error)
                raise
            if streamed is None:
                self._end()
                return None
            response = self._response(streamed)
            if response is not None:
                self._count += 1
                return response

    def _response(self, streamed: StreamedResponse) -> Response | None:
        """None for the empty response that only tells the end, where the caller has not asked for that."""
        call, transport = self._call, self._transport
        if streamed.error:
            return self._told(streamed, in_stream_fault(streamed.error, reached_model=streamed.final is not None))
        if streamed.empty and streamed.final is True:
            if not call.decoupled:
                # Triton 2.51 tells a cancelled request by an error without text, which on a stream looks like an
                # answer without outputs: so ends a step of a sequence of which another, that waited, was cancelled.
                text = "the model server ended the request without an answer"
                return self._told(streamed, UpstreamFault(Code.CANCELLED, text, from_peer=True))
            if not call.wants_end:
                return None
        try:
            transport.check_answer(call, self._attempt, streamed.model_name, streamed.model_version)
        except GatewayError:
            self._failed = True
            raise
        trail = call.trail
        if not trail.version_served:
            trail.version_served = streamed.model_version
            trail.answered_s = now_s = transport.now_s()
            transport.note_answer(call, self._attempt, self._connection, now_s)
        return Response(streamed.message)

    def _told(self, streamed: StreamedResponse, fault: UpstreamFault) -> Response:
        """A failure in the place of a response; the first one is the attempt's."""
        row = classify(fault)
        if not self._failed:
            self._failed = True
            self._transport.lost_model(self._call, self._attempt, self._connection, self._sent_s, fault)
            self._transport.judge(self._call, self._attempt, fault, row)
        return Response(streamed.message, to_error(fault, row))

    def _end(self) -> None:
        """The orderly end of the responses."""
        if not self._failed and self._attempt.outcome is None:
            now_s = self._transport.end(self._attempt, Outcome.OK, "")
            trail = self._call.trail
            if not trail.version_served:
                # Not one response, and none is owed: the version that was asked has done its work.
                trail.version_served = trail.version_routed
                trail.answered_s = now_s

    def _close(self, outcome: Outcome) -> None:
        self._release()

    def _release(self) -> None:
        flow, self._flow = self._flow, None
        if flow is not None:
            flow.release()
        self._connection.leave()
