"""Whether calls with the same key (`plans.with_key`) stay together."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.core.call import Call, Note
from tests.simulation.report import Report


def keys_stay_at_home(report: Report) -> Iterator[str]:
    """While all machines take calls, those of one key that are said to go home go to the same one; and who is led
    elsewhere has a note that says why: with nothing in flight the load is no reason.
    """
    scenario, homes = report.scenario, dict[tuple[str, str, int], tuple[str, str]]()
    for plan in scenario.calls:
        call, policy = report.calls.get(plan.number), scenario.policies.models.get(plan.model)
        if call is None or policy is None or policy.affinity is None or not plan.queue_timeout_us:
            continue
        trail = call.trail
        if not trail.attempts or trail.queued_s or trail.replicas_ready != len(scenario.machines):
            continue
        note, where = _led_away(call), trail.attempts[0].replica
        if note is not None:
            passed_over = "replica" in note.saw and (note.word == "elsewhere" or note.saw["place"])
            # With lanes an idle replica may be kept for calls of another size.
            if passed_over and not trail.in_flight_at_admit and policy.admission.lanes is None:
                yield f"call-{plan.number:05d}: its key led it {note.word}, past {note.saw['replica']}, which was idle"
            continue
        key = (plan.model, trail.version_routed, plan.queue_timeout_us)
        first, there = homes.setdefault(key, (f"call-{plan.number:05d}", where))
        if there != where:
            yield f"call-{plan.number:05d}: went home to {where}, and {first} of the same key to {there}"


def _led_away(call: Call) -> Note | None:
    """What the gateway says of a call that did not go home."""
    notes = [note for note in call.trail.notes or () if note.decider == "affinity" and note.word != "home"]
    return notes[0] if notes else None
