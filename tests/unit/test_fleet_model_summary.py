"""How a model may be called, read from the bytes that tritonclient's own classes write; zeros that they can read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb

from gateway.core.faces import ModelConfigBytes
from gateway.fleet.model_record import Description
from gateway.fleet.model_summary import ConfigSummary, read_config, zeros_request
from gateway.fleet.slots import SLOTS_MAX, default_slots, slots_of
from gateway.fleet.warmer import Unwarmable, from_policies, request_for, zeros
from gateway.policy.schema import Admission, FleetPolicy, PolicySet, Pool, Warmup
from gateway.wire.kserve.metadata import TensorMetadata
from gateway.wire.kserve.protobuf import WireError
from tests.unit.fleet_world import model_policy, static


def summary(config: mc.ModelConfig) -> ConfigSummary:
    return read_config(pb.ModelConfigResponse(config=config).SerializeToString())


def test_instances_are_counted_per_gpu_and_passive_ones_not_at_all() -> None:
    config = mc.ModelConfig(name="m", max_batch_size=16)
    group = config.instance_group.add
    group(count=2, kind=mc.ModelInstanceGroup.KIND_CPU)
    group(count=3, kind=mc.ModelInstanceGroup.KIND_GPU, gpus=[0, 1])
    group(count=1, kind=mc.ModelInstanceGroup.KIND_GPU)
    group(count=5, kind=mc.ModelInstanceGroup.KIND_CPU, passive=True)
    config.dynamic_batching.SetInParent()
    assert summary(config) == ConfigSummary(max_batch_size=16, instances=9, batches=True)
    assert default_slots(summary(config)) == 2 * 9 * 16


def test_kinds_of_models_are_told_apart() -> None:
    assert summary(mc.ModelConfig()) == ConfigSummary()
    config = mc.ModelConfig()
    config.sequence_batching.direct.SetInParent()
    assert summary(config).sequence
    config = mc.ModelConfig()
    config.model_transaction_policy.decoupled = True
    assert summary(config).decoupled
    config = mc.ModelConfig()
    config.ensemble_scheduling.step.add(model_name="a")
    assert summary(config).ensemble
    config = mc.ModelConfig()
    config.input.add(name="a", optional=True)
    config.input.add(name="b")
    assert summary(config).optional_inputs == {"a"}


def test_slots_come_from_the_policy_or_else_from_the_configuration() -> None:
    busy = ConfigSummary(max_batch_size=8, instances=2, batches=True)
    assert slots_of(model_policy("m"), busy) == 32
    assert slots_of(model_policy("m", admission=Admission(slots_per_replica=5)), busy) == 5
    assert default_slots(ConfigSummary(max_batch_size=8, instances=1, batches=False)) == 2, "its calls are not merged"
    assert default_slots(ConfigSummary(max_batch_size=10**6, instances=10**6, batches=True)) == SLOTS_MAX


@given(st.binary(max_size=300))
def test_any_bytes_give_a_summary_or_a_wire_error(data: bytes) -> None:
    try:
        read_config(data)
    except WireError:
        pass


DATATYPES = {"BOOL": 1, "UINT8": 1, "INT16": 2, "FP16": 2, "BF16": 2, "FP32": 4, "INT64": 8, "FP64": 8, "BYTES": 4}


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(DATATYPES)), st.lists(st.integers(-1, 4), max_size=4), st.booleans()),
        min_size=1,
        max_size=5,
    )
)
def test_a_request_of_zeros_has_every_required_input_in_its_shape(inputs: list[tuple[str, list[int], bool]]) -> None:
    tensors = tuple(TensorMetadata(f"i{n}", kind, tuple(shape)) for n, (kind, shape, _) in enumerate(inputs))
    optional = frozenset(f"i{n}" for n, (_, _, is_optional) in enumerate(inputs) if is_optional)
    message = pb.ModelInferRequest.FromString(zeros_request(tensors, ConfigSummary(optional_inputs=optional)))
    expected = [t for t in tensors if t.name not in optional] or list(tensors)
    assert [each.name for each in message.inputs] == [each.name for each in expected]
    for each, raw, tensor in zip(message.inputs, message.raw_input_contents, expected, strict=True):
        shape = [1 if size < 0 else size for size in tensor.shape]
        assert list(each.shape) == shape
        count = 1
        for size in shape:
            count *= size
        assert raw == bytes(count * DATATYPES[tensor.datatype])


def test_zeros_that_would_be_huge_or_of_an_unknown_type_are_not_made() -> None:
    with pytest.raises(ValueError, match="more than"):
        zeros_request((TensorMetadata("a", "FP32", (1 << 40,)),), ConfigSummary())
    with pytest.raises(ValueError, match="FP99"):
        zeros_request((TensorMetadata("a", "FP99", (1,)),), ConfigSummary())


def described(**fields: object) -> Description:
    metadata = pb.ModelMetadataResponse(name="m")
    metadata.inputs.add(name="x", datatype="FP32", shape=[-1, 2])
    summary = ConfigSummary(**fields)  # type: ignore[arg-type]
    return Description(metadata.SerializeToString(), ModelConfigBytes(b"", b""), summary)


def test_models_that_calls_cannot_warm_say_why() -> None:
    policy = model_policy("m")
    assert request_for(zeros, policy, described())
    for text, description in (("sequence", described(sequence=True)), ("decoupled", described(decoupled=True))):
        with pytest.raises(Unwarmable, match=text):
            request_for(zeros, policy, description)
    with pytest.raises(Unwarmable, match="wants no"):
        request_for(zeros, model_policy("m", warmup=Warmup(calls=0)), described())
    unreadable = Description(b"\xff", ModelConfigBytes(b"", b""), ConfigSummary())
    with pytest.raises(Unwarmable, match="no default request"):
        request_for(zeros, policy, unreadable)


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
