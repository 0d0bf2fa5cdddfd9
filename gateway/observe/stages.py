"""The time of a call, stage by stage, made from its trail's time stamps."""

from __future__ import annotations

from gateway.core.call import Trail

STAGES = ("receive", "route", "queue", "upstream", "write")
"""receive: first header byte to decoded body. route: to the choice of a version. queue: to the permit, the wait for a
slot included. upstream: to the whole answer, or to a stream's first response. write: to the end of the reply.
"""

NOT_REACHED = -1.0
Stages = tuple[float, float, float, float, float]


def stage_seconds(trail: Trail, arrived_s: float, ended_s: float) -> Stages:
    """Seconds per stage in the order of `STAGES`; `NOT_REACHED` for one that the call never entered. The stage in which
    a call ended lasts until `ended_s`, so that the stages of any call add up to its duration.
    """
    received_s = trail.received_s
    if not received_s:
        return (_span(arrived_s, ended_s), NOT_REACHED, NOT_REACHED, NOT_REACHED, NOT_REACHED)
    receive = _span(arrived_s, received_s)
    routed_s = trail.routed_s
    if not routed_s:
        return (receive, _span(received_s, ended_s), NOT_REACHED, NOT_REACHED, NOT_REACHED)
    if routed_s < received_s:
        # Routed from headers alone, while the body was still coming: no time of its own.
        routed_s = received_s
    route = routed_s - received_s
    admitted_s = trail.admitted_s
    if not admitted_s:
        return (receive, route, _span(routed_s, ended_s), NOT_REACHED, NOT_REACHED)
    queue = _span(routed_s, admitted_s)
    answered_s = trail.answered_s
    if not answered_s:
        return (receive, route, queue, _span(admitted_s, ended_s), NOT_REACHED)
    return (receive, route, queue, _span(admitted_s, answered_s), _span(answered_s, ended_s))


def _span(start_s: float, end_s: float) -> float:
    return end_s - start_s if end_s > start_s else 0.0
