"""A model configuration's summary, read from the bytes that tritonclient's own classes write."""

from __future__ import annotations

import pytest
from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb

from gateway.core.errors import GatewayError, Reason
from gateway.wire.kserve.datatypes import TABLE
from gateway.wire.kserve.metadata import TensorMetadata
from gateway.wire.kserve.model_config import ModelConfigSummary, summarise_config


def summary(config: mc.ModelConfig) -> ModelConfigSummary:
    return summarise_config(pb.ModelConfigResponse(config=config).SerializeToString())


def test_instances_are_counted_per_gpu_and_passive_ones_not_at_all() -> None:
    config = mc.ModelConfig(name="m", max_batch_size=16)
    group = config.instance_group.add
    group(count=2, kind=mc.ModelInstanceGroup.KIND_CPU)
    group(count=3, kind=mc.ModelInstanceGroup.KIND_GPU, gpus=[0, 1])
    group(count=1, kind=mc.ModelInstanceGroup.KIND_GPU)
    group(count=5, kind=mc.ModelInstanceGroup.KIND_CPU, passive=True)
    config.dynamic_batching.SetInParent()
    assert summary(config) == ModelConfigSummary(max_batch_size=16, instances=9, batches=True)


def test_kinds_of_models_are_told_apart() -> None:
    assert summary(mc.ModelConfig()) == ModelConfigSummary()
    config = mc.ModelConfig()
    config.sequence_batching.direct.SetInParent()
    assert summary(config).sequence
    config = mc.ModelConfig()
    config.model_transaction_policy.decoupled = True
    assert summary(config).decoupled
    config = mc.ModelConfig()
    config.input.add(name="a", optional=True)
    config.input.add(name="b")
    assert summary(config).optional_inputs == {"a"}


def test_how_long_a_silent_sequence_is_kept_is_tritons_default_where_nothing_is_said() -> None:
    config = mc.ModelConfig()
    assert summary(config).sequence_idle_s is None
    config.sequence_batching.oldest.max_candidate_sequences = 4
    assert summary(config).sequence_idle_s == 1.0
    config.sequence_batching.max_sequence_idle_microseconds = 2_500_000
    assert summary(config).sequence_idle_s == 2.5
    ensemble = mc.ModelConfig()
    ensemble.ensemble_scheduling.step.add(model_name="part")
    assert summary(ensemble).sequence_idle_s == 60.0, "its parts may be stateful"
    assert not summary(ensemble).sequence


def test_whether_sequences_go_by_strings_is_read_from_the_control_input() -> None:
    config = mc.ModelConfig()
    control = config.sequence_batching.control_input
    control.add(name="START").control.add(kind=mc.ModelSequenceBatching.Control.CONTROL_SEQUENCE_START)
    assert not summary(config).corrid_is_text
    corrid = control.add(name="CORRID").control.add(kind=mc.ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID)
    corrid.data_type = mc.TYPE_UINT64
    assert not summary(config).corrid_is_text
    corrid.data_type = mc.TYPE_STRING
    assert summary(config).corrid_is_text
    assert summary(config).sequence
    control[0].control[0].data_type = mc.TYPE_STRING
    corrid.data_type = mc.TYPE_INT32
    assert not summary(config).corrid_is_text, "the type of another control says nothing"


def test_inputs_are_as_declared_in_order_without_the_batch_dimension() -> None:
    config = mc.ModelConfig(name="m", max_batch_size=4)
    config.input.add(name="x", data_type=mc.TYPE_FP32, dims=[-1, 12])
    config.input.add(name="text", data_type=mc.TYPE_STRING, dims=[1], optional=True)
    assert summary(config).inputs == (TensorMetadata("x", "FP32", (-1, 12)), TensorMetadata("text", "BYTES", (1,)))
    assert summary(config).optional_inputs == {"text"}


def test_every_type_has_its_number_and_no_number_is_left() -> None:
    numbers = {("BYTES" if name == "TYPE_STRING" else name[5:]): number for name, number in mc.DataType.items()}
    del numbers["INVALID"]
    assert {row.name: row.config_number for row in TABLE} == numbers


def test_an_input_of_a_type_that_is_not_known_is_shown_as_such() -> None:
    config = mc.ModelConfig()
    config.input.add(name="x", dims=[2])
    assert summary(config).inputs == (TensorMetadata("x", "type 0", (2,)),)


@pytest.mark.parametrize("response", [b"\x08\x01", b"\x0a\x05a", b"\x0a\x03\x2a\x01\xff", b"\x0a\x04\x2a\x02\x0a\x09"])
def test_a_configuration_that_makes_no_sense_is_the_model_servers_fault(response: bytes) -> None:
    with pytest.raises(GatewayError, match="model configuration") as caught:
        summarise_config(response)
    assert caught.value.reason is Reason.UPSTREAM_BROKEN


def test_outputs_of_texts_are_known_with_label_files_beside_them() -> None:
    config = mc.ModelConfig(name="m")
    config.output.add(name="scores", data_type=mc.TYPE_FP32, dims=[4], label_filename="labels.txt")
    config.output.add(name="words", data_type=mc.TYPE_STRING, dims=[-1], label_filename="l")
    response = pb.ModelConfigResponse(config=config)
    assert summarise_config(response.SerializeToString()).text_outputs == frozenset({"words"})
