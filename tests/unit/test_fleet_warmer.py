"""What a replica is warmed with, and how many calls it may have at a time."""

from __future__ import annotations

import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.core.faces import ModelConfigBytes
from gateway.fleet.model_record import Description
from gateway.fleet.slots import SLOTS_MAX, default_slots, slots_of
from gateway.fleet.warmer import NotServed, Unwarmable, from_policies, request_for, zeros
from gateway.policy.schema import Admission, FleetPolicy, PolicySet, Pool, Warmup
from gateway.wire.kserve.model_config import ModelConfigSummary
from tests.unit.fleet_world import model_policy, static


def test_slots_come_from_the_policy_or_else_from_the_configuration() -> None:
    busy = ModelConfigSummary(max_batch_size=8, instances=2, batches=True)
    assert slots_of(model_policy("m"), busy) == 32
    assert slots_of(model_policy("m", admission=Admission(slots_per_replica=5)), busy) == 5
    assert default_slots(ModelConfigSummary(max_batch_size=8, instances=1, batches=False)) == 2, (
        "its calls are not merged"
    )
    assert default_slots(ModelConfigSummary(max_batch_size=10**6, instances=10**6, batches=True)) == SLOTS_MAX


def described(**fields: object) -> Description:
    metadata = pb.ModelMetadataResponse(name="m")
    metadata.inputs.add(name="x", datatype="FP32", shape=[-1, 2])
    summary = ModelConfigSummary(**fields)  # type: ignore[arg-type]
    return Description(metadata.SerializeToString(), ModelConfigBytes(b"", b""), summary)


def test_models_that_calls_cannot_warm_say_why() -> None:
    policy = model_policy("m")
    assert request_for(zeros, policy, described())
    with pytest.raises(Unwarmable, match="decoupled"):
        request_for(zeros, policy, described(decoupled=True))
    with pytest.raises(Unwarmable, match="wants no"):
        request_for(zeros, model_policy("m", warmup=Warmup(calls=0)), described())
    unreadable = Description(b"\xff", ModelConfigBytes(b"", b""), ModelConfigSummary())
    with pytest.raises(Unwarmable, match="no default request"):
        request_for(zeros, policy, unreadable)


def test_a_stateful_model_is_not_served_even_if_the_policy_wants_no_warm_up() -> None:
    for policy in (model_policy("m"), model_policy("m", warmup=Warmup(calls=0))):
        with pytest.raises(NotServed, match="stateful"):
            request_for(zeros, policy, described(sequence=True))


def test_the_request_that_a_policy_names_is_used_in_place_of_zeros() -> None:
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}'
    policies = PolicySet(
        revision="r",
        base_dir="/",
        fleet=FleetPolicy(pools={"gpu": Pool(replicas=static("h"))}),
        models={},
        warmup_requests={"m": body, "bad": b"{}"},
    )
    make = from_policies(policies)
    message = pb.ModelInferRequest.FromString(make(model_policy("m"), described()))
    assert message.raw_input_contents[0] == b"\0\0\x80?\0\0\0@"
    assert make(model_policy("other"), described()) == zeros(model_policy("other"), described())
    with pytest.raises(Unwarmable, match="request_file"):
        make(model_policy("bad"), described())
