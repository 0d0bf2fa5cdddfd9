"""Metadata, health and index between protobuf and Triton's JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.wire.kserve import metadata as md
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


def test_extensions_that_are_refused_are_dropped_and_no_others_and_all_replicas_have_one_name() -> None:
    served = ("classification", "model_repository", "binary_tensor_data", "statistics")
    refused = ("system_shared_memory", "cuda_shared_memory", "trace", "logging", "model_repository(unload_dependents)")
    kept = md.ServerMetadata("triton-3", "2.51.0", (*served, *refused)).for_callers()
    assert kept == md.ServerMetadata("triton", "2.51.0", served)


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


@pytest.mark.parametrize("decode", [md.decode_bool, md.decode_model_metadata, md.decode_server_metadata])
def test_a_replicas_junk_is_its_own_fault(decode: Any) -> None:
    for junk in (b"\x0a\x05a", b"\x0d\x00\x00\x00\x00", b"\xff"):
        with pytest.raises(GatewayError) as caught:
            decode(junk)
        assert caught.value.reason is Reason.UPSTREAM_BROKEN


def test_a_callers_junk_is_the_callers_fault() -> None:
    with pytest.raises(GatewayError, match="ModelReadyRequest") as caught:
        md.decode_model_request(b"\x0a\x01\xff", "ModelReadyRequest")
    assert (caught.value.reason, caught.value.code) == (Reason.BAD_REQUEST, Code.INTERNAL)
