"""What a replica is warmed with, and how many calls it may have at a time."""

from __future__ import annotations

import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.core.faces import ModelConfigBytes, ReplicaClient
from gateway.fleet.connection import Connection
from gateway.fleet.model_record import Description
from gateway.fleet.slots import SLOTS_MAX, default_slots, guessed, slots_of
from gateway.fleet.warmer import Unwarmable, from_policies, limit_s, request_for, try_once, zeros
from gateway.policy.schema import Admission, FleetPolicy, PolicySet, Pool, Warmup
from gateway.wire.kserve.model_config import ModelConfigSummary
from gateway.wire.kserve.request_view import read_head
from gateway.wire.kserve.sequence import sequence_step
from tests.support.replica_stream import HandStream, HandStreamClient
from tests.unit.fleet_world import model_policy, static


def test_slots_come_from_the_policy_or_else_from_the_configuration() -> None:
    busy = ModelConfigSummary(max_batch_size=8, instances=2, batches=True)
    assert slots_of(model_policy("m"), busy) == 32
    assert slots_of(model_policy("m", admission=Admission(slots_per_replica=5)), busy) == 5
    assert default_slots(ModelConfigSummary(max_batch_size=8, instances=1, batches=False)) == 2, (
        "its calls are not merged"
    )
    assert default_slots(ModelConfigSummary(max_batch_size=10**6, instances=10**6, batches=True)) == SLOTS_MAX


def test_the_slots_of_a_decoupled_model_are_a_guess_unless_its_policy_names_them() -> None:
    streams, named = ModelConfigSummary(decoupled=True), model_policy("m", admission=Admission(slots_per_replica=64))
    assert guessed(model_policy("m"), streams)
    assert not guessed(named, streams)
    assert not guessed(model_policy("m"), ModelConfigSummary())


def described(**fields: object) -> Description:
    metadata = pb.ModelMetadataResponse(name="m")
    metadata.inputs.add(name="x", datatype="FP32", shape=[-1, 2])
    summary = ModelConfigSummary(**fields)  # type: ignore[arg-type]
    return Description(metadata.SerializeToString(), ModelConfigBytes(b"", b""), summary)


def test_models_that_calls_cannot_warm_say_why() -> None:
    policy = model_policy("m")
    assert request_for(zeros, policy, described())
    assert request_for(zeros, policy, described(decoupled=True))
    with pytest.raises(Unwarmable, match="wants no"):
        request_for(zeros, model_policy("m", warmup=Warmup(calls=0)), described())
    unreadable = Description(b"\xff", ModelConfigBytes(b"", b""), ModelConfigSummary())
    with pytest.raises(Unwarmable, match="no default request"):
        request_for(zeros, policy, unreadable)


def test_a_stateful_model_is_warmed_by_sequences_of_one_call() -> None:
    for text in (False, True):
        request = request_for(zeros, model_policy("m"), described(sequence=True, corrid_is_text=text))
        step = sequence_step(read_head(request).parameters)
        assert step is not None
        assert (step.start, step.end, isinstance(step.id, str)) == (True, True, text)


def test_a_warm_up_call_to_a_stateful_model_does_not_wait_for_a_place_as_long_as_others_may_run() -> None:
    patient, brief = Warmup(timeout_ms=60_000), Warmup(timeout_ms=500)
    assert limit_s(model_policy("m", warmup=patient), described()) == 60.0
    assert limit_s(model_policy("m", warmup=patient), described(sequence=True)) == 2.0
    assert limit_s(model_policy("m", warmup=brief), described(sequence=True)) == 0.5


async def test_a_decoupled_model_is_warmed_by_its_first_response_and_then_left_alone() -> None:
    def answers(stream: HandStream) -> None:
        stream.respond("", model="m", version="1")

    def ends(stream: HandStream) -> None:
        stream.respond("", None, final=True, model="m", version="1")

    def fails(stream: HandStream) -> None:
        stream.report("cuda fault 700", final=True)

    for opened, good in ((answers, True), (ends, True), (fails, False)):
        client = HandStreamClient(opened)
        face: ReplicaClient = client  # type: ignore[assignment]
        connection = Connection(face)
        trial = await try_once(connection, ("m", "1"), b"", 1.0, decoupled=True)
        assert trial.good is good
        assert client.streams[0].cancelled
        assert connection.in_flight == 0
        assert client.streams[0].written[0].parameters["triton_enable_empty_final_response"].bool_param


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
