"""stages: the deadline split over the stages of a call, where the policy names some.

Stands around all that infers, admission's queue included. For what is below it inference's point is the deadline:
nobody waits for a slot beyond it, no attempt is told more time, nothing is sent after it. So what comes afterwards
keeps its share, and nothing below needs to know that there are stages.

Which stage a call spent too much time in is counted here, and noted on its trail. The stages are the policy's; those
of records and metrics (`observe/stages.py`) divide the same time more finely: ingress is receive and route, inference
is queue and upstream, postprocessing is write. Through `features` no call passes yet: what it has passes on.

A stream has no one deadline. Its split is that of the time to its first response, and nothing is said of its writing,
which ends only with the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.core.service import Service
from gateway.decide.stage_budget import CallLine, Stage, StageBudget, StageOverruns
from gateway.layers.deadline import where
from gateway.layers.gate import shown
from gateway.runtime.clock import Clock
from gateway.runtime.scope import DeadlinePassed, DeadlineScope
from gateway.runtime.wheel import TimerWheel

_NEVER = float("inf")


class StagesLayer:
    """The split of one model's deadline."""

    __slots__ = ("_budget", "_inner", "_now_s", "_overruns", "_wheel")

    def __init__(self, inner: Service, budget: StageBudget, clock: Clock, wheel: TimerWheel) -> None:
        self._inner = inner
        self._budget = budget
        self._now_s = clock.now_s
        self._wheel = wheel
        self._overruns = StageOverruns()

    async def send(self, call: Call) -> Reply:
        trail, streaming = call.trail, call.session is not None
        deadline_s, first_by_s = call.deadline_s, call.first_response_by_s
        end_s = first_by_s if streaming else deadline_s
        line = self._budget.line(call.arrived_s, end_s)
        began_s = max(trail.received_s, trail.routed_s)
        by_s = line.by_s("inference")
        if call.explain:
            points: tuple[Stage, ...] = ("ingress", "inference", "postprocessing")
            trail.note("stage", "split", {f"{stage}_by_ms": _ms(line.by_s(stage) - call.arrived_s) for stage in points})
        self._judge(call, line, "ingress", call.arrived_s, began_s)
        now_s = self._now_s()
        if now_s >= by_s:
            # Between route and here only a step of a sequence waits, which is inference's time.
            waited = call.sequence is not None and began_s < by_s
            if waited:
                self._judge(call, line, "inference", began_s, now_s, cut=True)
            else:
                self._overruns.note("inference", 0.0)
                trail.note("stage", "nothing_left", {"stage": "inference", "by_ms": _ms(by_s - call.arrived_s)})
            when = (
                "while the step waited for the one before it"
                if waited
                else "before the call had arrived and been routed"
            )
            raise GatewayError(
                Reason.INFEASIBLE,
                f"the time for inference of model '{shown(call.model)}' was over {when}: nothing was sent; "
                f"{_split(line, end_s - call.arrived_s)}",
            )
        if streaming:
            call.first_response_by_s = by_s
        else:
            call.deadline_s = by_s
        try:
            # Where nothing comes after inference, its end is the deadline, which the layer `deadline` sees to.
            with DeadlineScope(self._wheel, by_s if by_s < end_s else _NEVER):
                reply = await self._inner.send(call)
        except BaseException as error:
            now_s = self._now_s()
            late = isinstance(error, DeadlinePassed) or (
                isinstance(error, GatewayError) and error.reason is Reason.DEADLINE
            )
            cut = late or (isinstance(error, asyncio.CancelledError) and (now_s >= end_s or _expired(call)))
            self._judge(call, line, "inference", began_s, now_s, cut=cut)
            if late and by_s < end_s:
                raise GatewayError(
                    Reason.DEADLINE,
                    f"the time for inference passed {where(trail)}; {_split(line, end_s - call.arrived_s)}",
                ) from None
            raise
        finally:
            call.deadline_s, call.first_response_by_s = deadline_s, first_by_s
        self._judge(call, line, "inference", began_s, trail.answered_s or self._now_s())
        if not streaming:
            reply.on_close(partial(self._written, call, line))
        return reply

    def _written(self, call: Call, line: CallLine, outcome: Outcome) -> None:
        began_s, cut = call.trail.answered_s, outcome is Outcome.EXPIRED
        self._judge(call, line, "postprocessing", began_s, self._now_s(), cut=cut)

    def never_routed(self, call: Call) -> None:
        """The deadline of a call passed, its first response's if it is a stream, while it was still on its way here:
        its body came too slowly.
        """
        end_s = call.deadline_s if call.session is None else call.first_response_by_s
        line = self._budget.line(call.arrived_s, end_s)
        self._judge(call, line, "ingress", call.arrived_s, self._now_s(), cut=True)

    def _judge(
        self, call: Call, line: CallLine, stage: Stage, began_s: float, ended_s: float, *, cut: bool = False
    ) -> None:
        """`cut`: time was up in it."""
        over_s = line.overrun_s(stage, began_s, ended_s)
        self._overruns.note(stage, over_s, cut=cut)
        if cut or over_s > 0.0:
            saw: dict[str, float | str] = {"stage": stage, "took_ms": _ms(ended_s - began_s), "over_ms": _ms(over_s)}
            own_s = line.own_s(stage)
            if own_s is not None:
                saw["own_ms"] = _ms(own_s)
            call.trail.note("stage", "cut" if cut else "overrun", saw)

    def statistics(self, now_s: float) -> Mapping[str, Any]:
        return self._overruns.statistics(now_s)


def _expired(call: Call) -> bool:
    """The edge ends the call because its time is up."""
    return call.cut is not None and call.cut.reason is Reason.DEADLINE


def _split(line: CallLine, whole_s: float) -> str:
    return f"inference has {(line.own_s('inference') or 0.0) * 1000:.0f} ms of the deadline of {whole_s * 1000:.0f} ms"


def _ms(seconds: float) -> float:
    """Infinity has no JSON form, and is told as -1."""
    return round(seconds * 1000, 3) if seconds < float("inf") else -1.0
