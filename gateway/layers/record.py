"""record: exactly one prediction record per call, whatever happens.

Outermost of all, because a call that the gate refuses needs its record as much as one that was answered. The record
is closed when the answer was handed to the client (the reply's end) or when the error passes by, whichever comes
first; there is no third way out.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Protocol

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply, StreamReply
from gateway.core.service import Service
from gateway.runtime.clock import Clock

_log = logging.getLogger("sluice.record")

_OK = Outcome.OK
"""A member of an enumeration is found by code in Python (3.11), a name of the module is not."""


class CallSink(Protocol):
    """Takes note of a finished call: the record log, the metrics. Synchronous, bounded, never raises."""

    def call_ended(
        self, call: Call, outcome: Outcome, error: GatewayError | None, answer: bytes | None, now_s: float
    ) -> None: ...


_OUTCOME_OF_REASON = {
    Reason.DEADLINE: Outcome.EXPIRED,
    Reason.SLOW_BODY: Outcome.CALLER_FAULT,
    Reason.BAD_REQUEST: Outcome.CALLER_FAULT,
    Reason.UNAUTHENTICATED: Outcome.CALLER_FAULT,
    Reason.FORBIDDEN: Outcome.CALLER_FAULT,
    Reason.UNKNOWN_ROUTE: Outcome.CALLER_FAULT,
    Reason.UNKNOWN_MODEL: Outcome.CALLER_FAULT,
    Reason.UNKNOWN_VERSION: Outcome.CALLER_FAULT,
    Reason.UNSUPPORTED: Outcome.CALLER_FAULT,
    Reason.TOO_LARGE: Outcome.CALLER_FAULT,
    Reason.ANSWER_TOO_LARGE: Outcome.GATEWAY_FAULT,
    Reason.QUOTA: Outcome.OVERLOAD,
    Reason.BODY_MEMORY: Outcome.OVERLOAD,
    Reason.QUEUE_FULL: Outcome.OVERLOAD,
    Reason.SHED: Outcome.OVERLOAD,
    Reason.QUARANTINED: Outcome.CALLER_FAULT,
    Reason.INFEASIBLE: Outcome.EXPIRED,
    Reason.RECORD_FULL: Outcome.OVERLOAD,
    Reason.NO_REPLICA: Outcome.NOT_LOADED,
    Reason.SEQUENCE_LOST: Outcome.NOT_LOADED,
    Reason.DRAINING: Outcome.OVERLOAD,
    Reason.UPSTREAM_INVALID: Outcome.CALLER_FAULT,
    Reason.UPSTREAM_QUEUE_FULL: Outcome.OVERLOAD,
    Reason.UPSTREAM_QUEUE_TIMEOUT: Outcome.OVERLOAD,
    Reason.UPSTREAM_NOT_LOADED: Outcome.NOT_LOADED,
    Reason.UPSTREAM_REFUSED: Outcome.REFUSED,
    Reason.UPSTREAM_BROKEN: Outcome.BROKEN,
    Reason.UPSTREAM_WRONG_ANSWER: Outcome.BROKEN,
    Reason.UPSTREAM_LOST: Outcome.TRANSPORT,
    Reason.INTERNAL: Outcome.GATEWAY_FAULT,
}
assert set(_OUTCOME_OF_REASON) == set(Reason), "every reason needs an outcome"


class RecordLayer:
    """Closes each call's record once, into every sink."""

    __slots__ = ("_inner", "_now_s", "_sinks")

    def __init__(self, inner: Service, clock: Clock, sinks: tuple[CallSink, ...]) -> None:
        self._inner = inner
        self._now_s = clock.now_s
        self._sinks = tuple((sink.call_ended, type(sink).__name__) for sink in sinks)

    async def send(self, call: Call) -> Reply:
        try:
            reply = await self._inner.send(call)
        except GatewayError as error:
            self._end(call, _OUTCOME_OF_REASON[error.reason], error, None)
            raise
        except asyncio.CancelledError:
            cut = call.cut
            if cut is not None and (cut.reason is Reason.DEADLINE or not call.abandoned):
                self._end(call, _OUTCOME_OF_REASON[cut.reason], cut, None)
            elif call.abandoned:
                self._end(call, Outcome.ABANDONED, None, None)
            else:
                self._end(call, Outcome.GATEWAY_FAULT, _unasked_cancellation(), None)
            raise
        except BaseException:
            # Not handled here, only recorded: the edge turns it into one response and logs it with its traceback.
            self._end(call, Outcome.GATEWAY_FAULT, _internal(), None)
            raise
        if reply.streaming:
            self._watch_stream(call, reply)
        else:
            call.trail.responses = 1
            reply.on_close(partial(self._answered, call, reply))
        return reply

    def _answered(self, call: Call, reply: Reply, outcome: Outcome) -> None:
        self._end(call, outcome, None if outcome is _OK else _late(outcome), reply.message)

    def _watch_stream(self, call: Call, reply: Reply) -> None:
        assert isinstance(reply, StreamReply)
        reply.on_close(lambda outcome: self._stream_ended(call, reply, outcome))

    def _stream_ended(self, call: Call, reply: StreamReply, outcome: Outcome) -> None:
        call.trail.responses = reply.count
        first = reply.first
        message = None if first is None or first.error is not None else first.message
        failure = reply.failure
        if failure is not None and outcome in _DELIVERED:
            # The caller was handed what came, and it came to a bad end.
            self._end(call, _OUTCOME_OF_REASON[failure.reason], failure, message)
        else:
            self._end(call, outcome, _late(outcome), message)

    def _end(self, call: Call, outcome: Outcome, error: GatewayError | None, answer: bytes | None) -> None:
        clock_s = self._now_s
        now_s = clock_s()
        if error is not None:
            call.trail.reason = error.reason
        for call_ended, name in self._sinks:
            try:
                call_ended(call, outcome, error, answer, now_s)
            except BaseException:
                # A defect of one sink costs neither the next one its record nor the caller the answer. This goes for
                # CancelledError as well: a sink is synchronous, so nobody outside can have meant it.
                _log.exception("the end of call %s could not be noted by %s", call.request_id, name)


_DELIVERED = frozenset({Outcome.OK, Outcome.GATEWAY_FAULT, Outcome.EXPIRED})
"""What an edge says of a stream that it wrote to its end, or to the error that `next` raised."""
_LATE = {
    Outcome.EXPIRED: (Reason.DEADLINE, "the deadline passed before the answer could be written"),
    Outcome.BROKEN: (Reason.UPSTREAM_BROKEN, "the model server's answer could not be written in the caller's protocol"),
    Outcome.CALLER_FAULT: (Reason.BAD_REQUEST, "the answer could not be written in the form that was asked for"),
    Outcome.GATEWAY_FAULT: (Reason.INTERNAL, "the answer could not be handed to the caller"),
}


def _unasked_cancellation() -> GatewayError:
    return GatewayError(Reason.INTERNAL, "the call's task was cancelled inside the gateway")


def _internal() -> GatewayError:
    return GatewayError(Reason.INTERNAL, "an unexpected error inside the gateway")


def _late(outcome: Outcome) -> GatewayError | None:
    """What the caller got instead, where a good answer could not be delivered any more."""
    told = _LATE.get(outcome)
    return None if told is None else GatewayError(*told)
