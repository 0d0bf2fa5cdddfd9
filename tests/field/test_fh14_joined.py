"""FH-14 where everything that a call can hold is declared at once: a quota, lanes, memory, a ceiling, a home for its
key, a share of the deadline, a place in a sequence. However far it got, all of it comes back.
"""

from __future__ import annotations

from typing import Literal

import pytest
from tritonclient.grpc import service_pb2

from gateway.core.call import Call
from gateway.policy.admission_schema import Admission
from gateway.policy.balance_schema import Affinity
from gateway.policy.quota_schema import Quotas, TenantQuota
from gateway.policy.schema import (
    Deadline,
    FleetPolicy,
    Hedging,
    ModelPolicy,
    Objective,
    PolicySet,
    Pool,
    Replicas,
)
from gateway.policy.size_schema import Lane, Lanes, ModelMemory, Work
from gateway.policy.stage_schema import Stages
from tests.field.test_fh14_every_await import KINDS, STEPS_MAX, Stack, once
from tests.simulation.loop import simulate

UNIT_BYTES = 10


def message(work: float) -> bytes:
    request = service_pb2.ModelInferRequest(model_name="fraud")
    request.parameters["work"].double_param = work
    request.parameters["key"].string_param = "mine"
    made: bytes = request.SerializeToString()
    return made


class Joined(Stack):
    """Calls of the usual size."""

    work = 1.0
    apart: Literal["replica", "slots"] = "replica"

    def policies(self, kind: str) -> PolicySet:
        policy = ModelPolicy(
            model="fraud",
            pool="gpu",
            objective=Objective(p99_ms=1000),
            ladder="none",
            impact="x",
            read_only=kind not in ("never left", "a sequence"),
            hedging=Hedging(enabled=kind.startswith("hedged")),
            work=Work(by="parameter", parameter="work"),
            memory=ModelMemory(fixed_bytes=100, bytes_per_unit=UNIT_BYTES),
            affinity=Affinity(by="parameter", name="key"),
            deadline=Deadline(stages=Stages(inference_ms=900, postprocessing_ms=50)),
            admission=Admission(lanes=Lanes(larger=(Lane(name="large", work_above=5, share=0.5),), apart=self.apart)),
        )
        pool = Pool(replicas=Replicas(static=()), memory_bytes=1000, in_flight_max=8)
        quotas = Quotas(default=TenantQuota(concurrency_max=50, rate_per_s=1000.0))
        fleet = FleetPolicy(pools={"gpu": pool}, quotas=quotas)
        return PolicySet(revision="r", base_dir="/", fleet=fleet, models={"fraud": policy})

    def call(self) -> Call:
        return self._call(self.work)

    def other(self) -> Call:
        return self._call(1.0)

    def _call(self, work: float) -> Call:
        now_s = self.clock.now_s()
        body = message(work)
        return Call("r", "fraud", "", now_s, 0.0, body, body_bytes=len(body), timeout_s=1.0, explain=True)

    def left_over(self) -> str:
        now_s, found = self.clock.now_s(), []
        quota = self.stack.quota
        assert quota is not None
        figures = quota.statistics(now_s)
        if figures["busy"] or any(row["in_flight"] for row in figures["used_last"]):
            found.append(f"quota: {figures}")
        for each in self.stack.commons.values():
            shared = each.statistics(now_s)
            bytes_out = [row["in_flight_bytes"] for row in shared["memory"].values()]
            if shared["in_flight"] or shared["waiting"] or shared["kept"] or any(bytes_out) or shared["desks_waiting"]:
                found.append(f"shared: {shared}")
        for layer in self.stack.admissions.values():
            lanes = [row["lanes"] for row in layer.statistics(now_s).values()]
            found += [
                f"lanes: {each}" for row in lanes for each in row.values() if each["in_flight"] or each["waiting"]
            ]
        return "; ".join(found)


class JoinedLarge(Joined):
    """Large calls, which have a part of the slots."""

    work = 8.0
    apart = "slots"


@pytest.mark.parametrize("made", [Joined, JoinedLarge])
@pytest.mark.parametrize("capped", [False, True], ids=["cancels allowed", "cancels capped"])
@pytest.mark.parametrize("how", ["left", "cut", "late"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_that_a_call_holds_comes_back_wherever_it_is_cancelled(
    kind: str, how: str, capped: bool, made: type[Joined]
) -> None:
    for steps in range(1, STEPS_MAX):
        if simulate(lambda loop, steps=steps: once(kind, steps, how, capped=capped, made=made)):  # type: ignore[misc]
            assert steps >= 2
            return
    raise AssertionError(f"{kind} did not end within {STEPS_MAX} steps")
