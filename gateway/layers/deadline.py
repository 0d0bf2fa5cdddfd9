"""deadline: one absolute budget over everything below, the arrival of the body included.

The deadline counts from the first byte of the call's headers and never restarts: upload, queue, and work upstream all
come out of it (field case FH-19). A caller can only shorten what the policy allows.

A streaming call has three limits instead of one: to its first response, between responses, and on the whole. What the
caller names is a limit on the whole; the policy's default deadline is not, for a good stream may outlast it by far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

from gateway.core.call import Call, Trail
from gateway.core.errors import GatewayError, Reason
from gateway.core.reply import Next, Reply, Response, StreamReply
from gateway.core.service import Service
from gateway.runtime.clock import Clock
from gateway.runtime.scope import DeadlinePassed, DeadlineScope
from gateway.runtime.wheel import TimerWheel

_INFINITY = float("inf")


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Limits of a streaming call in seconds; `inf` where there is none."""

    first_response_s: float
    idle_s: float
    total_s: float = _INFINITY


class DeadlineTable(Protocol):
    """What the deadline layer asks of one revision of the policies."""

    @property
    def deadlines_s(self) -> Callable[[str], tuple[float, float] | None]:
        """Of a model: (default, maximum), seconds; None if no policy names it."""
        ...


class DeadlineRules(Protocol):
    """The policies in force."""

    @property
    def table(self) -> DeadlineTable: ...

    def stream_limits(self, model: str) -> StreamLimits: ...

    def never_routed(self, call: Call) -> None:
        """The deadline of `call` passed before a version was chosen for it."""
        ...


class DeadlineLayer:
    """Sets the call's deadline, waits for its body, and cuts everything below short when the deadline passes."""

    __slots__ = ("_inner", "_now_s", "_rules", "_wheel")

    def __init__(self, inner: Service, clock: Clock, wheel: TimerWheel, rules: DeadlineRules) -> None:
        self._inner = inner
        self._now_s = clock.now_s
        self._wheel = wheel
        self._rules = rules

    async def send(self, call: Call) -> Reply:
        if call.session is not None:
            return await self._stream(call, call.session.deadline_s)
        # A callable that an object holds is called twice as quickly by a name of its own: that goes for all layers.
        deadlines_of, clock_s = self._rules.table.deadlines_s, self._now_s
        budget_s, max_s = deadlines_of(call.model) or _unknown(call.model)
        timeout_s = call.timeout_s
        if timeout_s is not None:
            budget_s = timeout_s if timeout_s < max_s else max_s
        call.deadline_s = deadline_s = call.arrived_s + budget_s
        now_s = clock_s()
        if now_s >= deadline_s:
            raise self._passed(call, budget_s)
        # What `with` would do, at two thirds of what that costs each call.
        scope = DeadlineScope(self._wheel, deadline_s)
        try:
            if call.message is None:
                await _receive(call)
                now_s = clock_s()
            call.trail.received_s = now_s
            reply = await self._inner.send(call)
        except BaseException as error:
            if scope.end(error):
                raise self._passed(call, budget_s) from None
            raise
        scope.bucket.pop(scope, None)
        if scope.fired:
            scope.end(None)
        return reply

    async def _stream(self, call: Call, session_deadline_s: float) -> Reply:
        limits = self._rules.stream_limits(call.model)
        total_s = limits.total_s if call.timeout_s is None else min(call.timeout_s, limits.total_s)
        call.deadline_s = min(call.arrived_s + total_s, session_deadline_s)
        first_s = call.first_response_by_s = min(call.deadline_s, call.arrived_s + limits.first_response_s)
        if self._now_s() >= first_s:
            raise self._passed(call, first_s - call.arrived_s)
        try:
            with DeadlineScope(self._wheel, first_s):
                if call.message is None:
                    await _receive(call)
                call.trail.received_s = self._now_s()
                reply = await self._inner.send(call)
        except DeadlinePassed:
            error = self._passed(call, call.deadline_s - call.arrived_s)
            if first_s < call.deadline_s:
                error = GatewayError(
                    Reason.DEADLINE,
                    f"no response came within {limits.first_response_s:g} s: the limit passed {where(call.trail)}",
                )
            raise error from None
        if isinstance(reply, StreamReply):
            reply.guard(lambda following: self._watched(call, following, limits.idle_s))
        return reply

    def _passed(self, call: Call, budget_s: float) -> GatewayError:
        if not call.trail.routed_s:
            self._rules.never_routed(call)
        return passed(call, budget_s)

    def _watched(self, call: Call, following: Next, idle_s: float) -> Next:
        async def next_in_time() -> Response | None:
            idle_at_s = self._now_s() + idle_s
            try:
                with DeadlineScope(self._wheel, min(idle_at_s, call.deadline_s)):
                    return await following()
            except DeadlinePassed:
                if idle_at_s < call.deadline_s:
                    raise GatewayError(
                        Reason.DEADLINE, f"no further response came within {idle_s:g} s; what came before is not all"
                    ) from None
                raise GatewayError(
                    Reason.DEADLINE,
                    f"the deadline of {(call.deadline_s - call.arrived_s) * 1000:.0f} ms passed during the stream; "
                    "what came before is not all",
                ) from None

        return next_in_time


def unknown(model: str) -> Exception:
    """No policy names a model that the gate has let through."""
    return RuntimeError(f"the gate let {model!r} through, and no policy names it")


def _unknown(model: str) -> NoReturn:
    raise unknown(model)


async def _receive(call: Call) -> None:
    if call.receive is None:
        raise RuntimeError("a call without a message must say how to receive it")
    await call.receive()


def passed(call: Call, budget_s: float) -> GatewayError:
    """The error for a deadline that passed, naming the stage in which it did."""
    return GatewayError(Reason.DEADLINE, f"the deadline of {budget_s * 1000:.0f} ms passed {where(call.trail)}")


def where(trail: Trail) -> str:
    """What a call was at when its time was up, in words that follow `passed`."""
    if trail.attempts:
        return "while the model server worked on the call"
    if trail.queued_s:
        return "while the call waited for a free slot"
    if trail.received_s:
        return "before the call was sent to a model server"
    return "before the request body had arrived"
