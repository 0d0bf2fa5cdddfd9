"""Whether calls with the same key (`plans.with_key`) stay together."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.core.call import Call
from tests.simulation.report import Report


def keys_stay_at_home(report: Report) -> Iterator[str]:
    """While all machines take calls, those of one key that nothing keeps from their home go to the same one: where
    nothing else is in flight the load allows it, and who is led elsewhere has a note that says so.
    """
    scenario, homes = report.scenario, dict[tuple[str, str, int], tuple[str, str]]()
    calm = not scenario.events and not any(spec.straggler_share for spec in scenario.specs)
    for plan in scenario.calls:
        call, policy = report.calls.get(plan.number), scenario.policies.models.get(plan.model)
        if call is None or policy is None or policy.affinity is None or not plan.queue_timeout_us:
            continue
        trail = call.trail
        if not trail.attempts or trail.queued_s or trail.replicas_ready != len(scenario.machines):
            continue
        word, where = _word(call), trail.attempts[0].replica
        if word:
            if word != "lent" and calm and not trail.in_flight_at_admit:
                yield f"call-{plan.number:05d}: its key led it {word}, and nothing was in flight or amiss"
            continue
        key = (plan.model, trail.version_routed, plan.queue_timeout_us)
        first, there = homes.setdefault(key, (f"call-{plan.number:05d}", where))
        if there != where:
            yield f"call-{plan.number:05d}: went home to {where}, and {first} of the same key to {there}"


def _word(call: Call) -> str:
    """What the gateway says of where the key led; "" for home."""
    words = [note.word for note in call.trail.notes or () if note.decider == "affinity"]
    return words[0] if words and words[0] != "home" else ""
