"""Metadata, health and index between protobuf and Triton's JSON; and the summary of a model configuration."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.wire.kserve import metadata as md
from gateway.wire.kserve.http_raw import TensorSpec
from gateway.wire.kserve.model_config import ModelConfigSummary, summarise_config
from tests.unit.kserve_messages import int64s, names

tensors = st.builds(
    service_pb2.ModelMetadataResponse.TensorMetadata, name=names, datatype=names, shape=st.lists(int64s, max_size=4)
)
models = st.builds(
    service_pb2.ModelMetadataResponse,
    name=names,
    versions=st.lists(names, max_size=3),
    platform=names,
    inputs=st.lists(tensors, max_size=3),
    outputs=st.lists(tensors, max_size=3),
)


@given(models)
def test_model_metadata_goes_through_unchanged(message: Any) -> None:
    metadata = md.decode_model_metadata(message.SerializeToString())
    assert service_pb2.ModelMetadataResponse.FromString(metadata.to_protobuf()) == message
    document = json.loads(metadata.to_json())
    assert list(document) == ["name", "versions", "platform", "inputs", "outputs"]
    assert document["inputs"] == [
        {"name": each.name, "datatype": each.datatype, "shape": list(each.shape)} for each in message.inputs
    ]


def test_model_metadata_json_is_tritons_to_the_byte() -> None:
    metadata = md.ModelMetadata(
        "params",
        ("1",),
        "python",
        (md.TensorMetadata("x", "FP32", (-1, -1)),),
        (md.TensorMetadata("p", "BYTES", (-1, 1)),),
    )
    assert metadata.with_versions(["2", "3"]).to_json() == (
        b'{"name":"params","versions":["2","3"],"platform":"python",'
        b'"inputs":[{"name":"x","datatype":"FP32","shape":[-1,-1]}],'
        b'"outputs":[{"name":"p","datatype":"BYTES","shape":[-1,1]}]}'
    )


@given(names, names, st.lists(names, max_size=4))
def test_server_metadata_goes_through_unchanged(name: str, version: str, extensions: list[str]) -> None:
    message = service_pb2.ServerMetadataResponse(name=name, version=version, extensions=extensions)
    metadata = md.decode_server_metadata(message.SerializeToString())
    assert service_pb2.ServerMetadataResponse.FromString(metadata.to_protobuf()) == message
    assert json.loads(metadata.to_json()) == {"name": name, "version": version, "extensions": extensions}


def test_shared_memory_extensions_are_dropped_and_no_others() -> None:
    extensions = ("classification", "system_shared_memory", "cuda_shared_memory", "binary_tensor_data")
    kept = md.ServerMetadata("triton", "2.51.0", extensions).without_shared_memory()
    assert kept.extensions == ("classification", "binary_tensor_data")


@given(st.booleans())
def test_health_answers_are_the_references(value: bool) -> None:
    assert md.encode_bool(value) == service_pb2.ServerLiveResponse(live=value).SerializeToString()
    assert md.encode_bool(value) == service_pb2.ModelReadyResponse(ready=value).SerializeToString()
    assert md.decode_bool(service_pb2.ServerReadyResponse(ready=value).SerializeToString()) is value


@given(names, names)
def test_requests_about_a_model_are_the_references(name: str, version: str) -> None:
    message = service_pb2.ModelMetadataRequest(name=name, version=version).SerializeToString()
    assert md.encode_model_request(name, version) == message
    assert md.decode_model_request(message) == (name, version)


def test_the_index_is_read() -> None:
    message = service_pb2.RepositoryIndexResponse()
    message.models.add(name="never loaded")
    message.models.add(name="m", version="1", state="UNAVAILABLE", reason="unloaded")
    assert md.decode_index(message.SerializeToString()) == (
        md.IndexEntry("never loaded", "", "", ""),
        md.IndexEntry("m", "1", "UNAVAILABLE", "unloaded"),
    )
    assert md.encode_index_request() == service_pb2.RepositoryIndexRequest().SerializeToString()
    assert md.encode_index_request(True) == service_pb2.RepositoryIndexRequest(ready=True).SerializeToString()


@pytest.mark.parametrize(
    "decode", [md.decode_bool, md.decode_model_metadata, md.decode_server_metadata, md.decode_index]
)
def test_a_replicas_junk_is_its_own_fault(decode: Any) -> None:
    for junk in (b"\x0a\x05a", b"\x0d\x00\x00\x00\x00", b"\xff"):
        with pytest.raises(GatewayError) as caught:
            decode(junk)
        assert caught.value.reason is Reason.UPSTREAM_BROKEN


def test_a_callers_junk_is_the_callers_fault() -> None:
    with pytest.raises(GatewayError, match="ModelReadyRequest") as caught:
        md.decode_model_request(b"\x0a\x01\xff", "ModelReadyRequest")
    assert (caught.value.reason, caught.value.code) == (Reason.BAD_REQUEST, Code.INTERNAL)


# --- configuration --------------------------------------------------------------------------------------------------

CONFIG: dict[str, Any] = {
    "name": "fraud",
    "platform": "",
    "backend": "python",
    "version_policy": {"latest": {"num_versions": 1}},
    "max_batch_size": 16,
    "input": [
        {"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 12], "optional": False},
        {"name": "text", "data_type": "TYPE_STRING", "dims": [1], "optional": True},
    ],
    "output": [{"name": "score", "data_type": "TYPE_FP64", "dims": [1]}],
    "instance_group": [
        {"name": "a", "kind": "KIND_CPU", "count": 2, "gpus": []},
        {"name": "b", "kind": "KIND_GPU", "count": 3, "gpus": [0, 1]},
        {"name": "c", "kind": "KIND_CPU", "count": 5, "gpus": [], "passive": True},
    ],
    "dynamic_batching": {
        "preferred_batch_size": [16],
        "max_queue_delay_microseconds": 100,
        "preserve_ordering": False,
        "priority_levels": 2,
        "default_queue_policy": {
            "timeout_action": "REJECT",
            "default_timeout_microseconds": "5000000000",
            "allow_timeout_override": True,
            "max_queue_size": 64,
        },
    },
}


def summary(**changes: Any) -> ModelConfigSummary:
    return summarise_config(json.dumps({**CONFIG, **changes}))


def test_a_configuration_is_summarised() -> None:
    got = summary()
    assert (got.name, got.backend, got.max_batch_size) == ("fraud", "python", 16)
    assert got.instances == 2 + 3 * 2
    assert got.slots == 8 * 16
    assert got.inputs == (TensorSpec("x", "FP32", (-1, 12)), TensorSpec("text", "BYTES", (1,)))
    assert got.outputs == (TensorSpec("score", "FP64", (1,)),)
    assert got.optional_inputs == {"text"}
    assert [got.decoupled, got.sequence, got.ensemble, got.response_cache] == [False] * 4
    assert got.stateless
    assert got.dynamic_batching is not None
    assert got.dynamic_batching.preferred_batch_sizes == (16,)
    assert got.dynamic_batching.max_queue_delay_us == 100
    assert got.dynamic_batching.priority_levels == 2
    assert got.dynamic_batching.queue.max_queue_size == 64
    assert got.dynamic_batching.queue.default_timeout_us == 5_000_000_000
    assert got.dynamic_batching.queue.allow_timeout_override


def test_what_makes_a_model_special_is_seen() -> None:
    assert summary(model_transaction_policy={"decoupled": True}).decoupled
    assert not summary(model_transaction_policy={"decoupled": False}).decoupled
    assert not summary(model_transaction_policy={"decoupled": True}).stateless
    sequence = {key: value for key, value in CONFIG.items() if key != "dynamic_batching"}
    got = summarise_config(json.dumps({**sequence, "sequence_batching": {"max_sequence_idle_microseconds": 1}}))
    assert got.sequence
    assert not got.stateless
    assert got.dynamic_batching is None
    assert summary(ensemble_scheduling={"step": []}, instance_group=[]).ensemble
    assert summary(response_cache={"enable": True}).response_cache


def test_a_model_without_a_batcher_has_one_slot_per_instance() -> None:
    plain = {key: value for key, value in CONFIG.items() if key != "dynamic_batching"}
    assert summarise_config(json.dumps(plain)).slots == 8
    assert summary(max_batch_size=0, instance_group=[]).slots == 1


def test_protobufs_own_json_and_absent_keys_are_read_too() -> None:
    from tritonclient.grpc import model_config_pb2

    config = model_config_pb2.ModelConfig(name="m", max_batch_size=4)
    config.input.add(name="x", data_type=model_config_pb2.TYPE_INT64, dims=[3])
    config.dynamic_batching.max_queue_delay_microseconds = 7
    got = summarise_config(json_format.MessageToJson(config, preserving_proto_field_name=True))
    assert got.inputs == (TensorSpec("x", "INT64", (3,)),)
    assert got.dynamic_batching is not None
    assert got.dynamic_batching.max_queue_delay_us == 7
    assert summarise_config('{"name":"m"}').instances == 1


@pytest.mark.parametrize(
    "document",
    [
        "",
        "[]",
        "null",
        "{}",
        '{"name":"m","max_batch_size":"x"}',
        '{"name":"m","input":[5]}',
        '{"name":"m","input":[{}]}',
        '{"name":"m","instance_group":{"a":1}}',
        '{"name":"m","dynamic_batching":[]}',
        '{"name":"m","input":[{"name":"x","data_type":"TYPE_FP32","dims":5}]}',
    ],
)
def test_a_configuration_that_makes_no_sense_is_the_model_servers_fault(document: str) -> None:
    with pytest.raises(GatewayError, match="model configuration") as caught:
        summarise_config(document)
    assert caught.value.reason is Reason.UPSTREAM_BROKEN
