"""Size lanes, a shared ceiling and shared memory in some seeds, and what must hold of them.

What is out is counted here from the messages that leave, not read from the gateway's books.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from gateway.decide.admission import Admission
from gateway.decide.bound_admission import BoundAdmission
from gateway.policy.schema import PolicySet
from gateway.policy.size_schema import Lane, Lanes, ModelMemory, Work
from gateway.stack import Stack
from tests.simulation.batcher import ModelSpec

Key = tuple[str, str, str]
"""(machine, model, version)."""

UNIT = 16
"""Elements of the smallest call."""
LARGE = 2.5
"""A call of two rows of the wider kind is above this."""
IN_FLIGHT_MAX = 4
MEMORY_BYTES = 1 << 20
MEMORY = ModelMemory(fixed_bytes=20_000, bytes_per_unit=150_000.0)
"""About six units at a time. A call of more rows than its model takes may need more than there is."""


def _kind(seed: int) -> str:
    """By the seed and not drawn, so that the others still mean what they meant. A third of the seeds that have classes
    and a limit that moves have no bounds: these calls take the short way.
    """
    return "" if seed // 7 % 3 == 1 else {0: "shared", 1: "lanes"}.get(seed % 7, "")


def bound_tags(seed: int) -> list[str]:
    kind = _kind(seed)
    return [kind] if kind else []


def with_bounds(policies: PolicySet, specs: Iterable[ModelSpec], seed: int, pool: str) -> PolicySet:
    """The policies of this seed, with lanes and limits of their own or with shared bounds."""
    kind = _kind(seed)
    if not kind:
        return policies
    larger = (Lane(name="large", work_above=LARGE, share=0.3),)
    apart = Lanes(larger=larger, large_per_replica=1 + seed // 7 % 2)
    slots = Lanes(larger=larger, apart="slots")
    rows = {spec.name: spec.max_batch_size for spec in specs} if kind == "lanes" else {}
    models = {}
    for number, (name, policy) in enumerate(policies.models.items()):
        lanes = apart if kind == "lanes" else slots if (seed // 7 + number) % 2 else None
        models[name] = replace(
            policy,
            limits=replace(policy.limits, batch_max=rows.get(name)),
            work=Work(by="elements", unit=float(UNIT)),
            memory=MEMORY if kind == "shared" else ModelMemory(),
            admission=replace(policy.admission, lanes=lanes),
        )
    fleet = policies.fleet
    if kind == "shared":
        bounded = replace(fleet.pools[pool], in_flight_max=IN_FLIGHT_MAX, memory_bytes=MEMORY_BYTES)
        fleet = replace(fleet, pools={**fleet.pools, pool: bounded})
    return replace(policies, fleet=fleet, models=models)


class BoundWatch:
    """What is out on each machine, against what the policies allow."""

    def __init__(self, policies: PolicySet, violate: Callable[[str], None]) -> None:
        self._models = policies.models
        pool = next(iter(policies.fleet.pools.values()))
        self._ceiling, self._memory = pool.in_flight_max, pool.memory_bytes
        self._violate = violate
        self._out: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._lanes: Counter[tuple[Key, bool]] = Counter()
        """By version on a machine, and whether large."""

    def begin(self, key: Key, request: Any, name: str) -> float:
        """A call is sent; returns its units of work."""
        machine, policy = key[0], self._models.get(key[1])
        if policy is None or policy.work is None:
            return 1.0
        elements = 0
        for each in request.inputs:
            count = 1
            for size in each.shape:
                count *= size
            elements += count
        work = max(0.01, elements / UNIT)
        self._out[machine] += 1
        self._bytes[machine] += round(work * policy.memory.bytes_per_unit)
        self._lanes[key, work > LARGE] += 1
        if self._ceiling is not None and self._out[machine] > self._ceiling:
            self._violate(f"{name}: {self._out[machine]} calls on {machine}, whose ceiling is {self._ceiling}")
        if self._memory is not None and self._bytes[machine] > self._memory:
            self._violate(f"{name}: {self._bytes[machine]} bytes of calls on {machine}, which has {self._memory}")
        lanes = policy.admission.lanes
        if lanes is not None and lanes.apart == "replica" and not self._pinned(request):
            if self._lanes[key, work <= LARGE]:
                self._violate(f"{name}: two lanes run on {' '.join(key)}")
            if work > LARGE and self._lanes[key, True] > lanes.large_per_replica:
                self._violate(f"{name}: {self._lanes[key, True]} large calls run on {' '.join(key)}")
        return work

    @staticmethod
    def _pinned(request: Any) -> bool:
        return "sequence_id" in request.parameters

    def end(self, key: Key, work: float) -> None:
        policy = self._models.get(key[1])
        if policy is None or policy.work is None:
            return
        self._out[key[0]] -= 1
        self._bytes[key[0]] -= round(work * policy.memory.bytes_per_unit)
        self._lanes[key, work > LARGE] -= 1


TICK_S = 0.002
"""Of the wheel: what opens by time alone is seen so much later at the most."""


def waiting_places(stack: Stack, now_s: float) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Of each version of a model what admission says, the steps of sequences that wait by replica, and whether free
    slots are not for everybody.
    """
    for model, layer in stack.admissions.items():
        for version, state in layer.statistics(now_s).items():
            admission = layer._desks[version].admission
            lanes = admission._room._lanes
            steps = {replica: count for (replica, opens), count in lanes.items() if replica and not opens}
            kept = admission.kept.statistics(now_s - TICK_S)
            bound = layer._bounds is not None
            yield model, version, {**state, "steps_by_replica": steps, "bound": bound, "kept": kept}


def waits_in_vain(stack: Stack, now_s: float) -> Iterator[str]:
    """Nothing is ready, and somebody waits at a bound desk who could run."""
    for model, layer in stack.admissions.items():
        for version, desk in layer._desks.items():
            for each in desk.desks():
                admission = each.admission
                if isinstance(admission, BoundAdmission):
                    replica = _could_run_on(admission, now_s)
                    if replica:
                        lane = "" if admission.lane is None else f" lane {admission.lane.number}"
                        yield f"{model} {version}{lane}: {admission.waiting} calls wait although {replica} is free"


def _could_run_on(admission: BoundAdmission, now_s: float) -> str:
    ticket = admission._room.peek("") if admission.waiting else None
    if ticket is None:
        return ""
    admission._asking = ticket.work
    picker, ejection = admission.balance.picker, admission.balance.ejection
    standings = ejection.statistics(0.0)["by_replica"]
    for candidate in admission.candidates:
        replica = candidate.replica
        if not picker.trusted(replica) or standings.get(replica, {}).get("standing") in ("probing", "ejected"):
            continue
        kept = replica in admission.kept.statistics(now_s - TICK_S)
        if Admission._free(admission, replica) and admission._allowed(replica) and not kept:
            return replica
    return ""


def bounds_left(stack: Stack, now_s: float) -> Iterator[str]:
    """What is still counted when every call has ended."""
    for pool, commons in stack.commons.items():
        told = commons.statistics(now_s)
        if told["desks_waiting"]:
            yield f"{pool}: {told['desks_waiting']} desks are said to have calls that wait"
        if commons.shared is None:
            continue
        taken = sum(account["in_flight_bytes"] for account in told["memory"].values())
        if told["in_flight"] or taken or told["kept"] or told["waiting"]:
            yield f"{pool}: {told['in_flight']} in flight, {taken} bytes, {told['kept']} kept, {told['waiting']} wait"
    for model, layer in stack.admissions.items():
        for version, desk in layer._desks.items():
            for name, lane in desk.statistics(now_s).get("lanes", {}).items():
                if lane["in_flight"] or lane["waiting"]:
                    yield f"{model} {version}: lane {name} has {lane['in_flight']} in flight, {lane['waiting']} waiting"
