"""Hostile bytes into every KServe decoder: nothing but `GatewayError` comes out, and in bounded time."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2, service_pb2

from gateway.core.errors import GatewayError, Reason
from gateway.wire.kserve import metadata, protobuf, repository, statistics
from gateway.wire.kserve.generate_request import decode_generate
from gateway.wire.kserve.generate_response import encode_generate
from gateway.wire.kserve.http_raw import decode_raw_infer
from gateway.wire.kserve.http_request import ALL_BINARY, ALL_JSON, decode_http_infer, parse_header_length
from gateway.wire.kserve.http_response import encode_http_infer
from gateway.wire.kserve.model_config import ModelConfigSummary, summarise_config
from gateway.wire.kserve.request_view import read_head
from gateway.wire.kserve.response_view import read_response, read_response_head

CALLERS = (Reason.BAD_REQUEST, Reason.UNSUPPORTED)
"""What a caller's bytes may be blamed for: never an internal error."""
UPSTREAMS = (Reason.UPSTREAM_BROKEN, Reason.BAD_REQUEST)
"""What a replica's bytes may end in; BAD_REQUEST where the caller asked in JSON for what has no JSON form."""

Decoder = Callable[[bytes], object]

GENERATE_CONFIG = ModelConfigSummary(
    max_batch_size=8,
    inputs=(
        metadata.TensorMetadata("x", "FP32", (3, -1)),
        metadata.TensorMetadata("s", "BYTES", (-1,)),
        metadata.TensorMetadata("b", "INT64", (1,)),
    ),
)
DECODERS: tuple[tuple[str, Decoder, tuple[Reason, ...]], ...] = (
    ("head", read_head, CALLERS),
    ("model request", metadata.decode_model_request, CALLERS),
    ("json", decode_http_infer, CALLERS),
    ("framed", lambda body: decode_http_infer(body, len(FRAMED_JSON)), CALLERS),
    ("raw", lambda body: decode_raw_infer(body, [metadata.TensorMetadata("x", "FP32", (3, -1))], 8), CALLERS),
    ("header length", parse_header_length, CALLERS),
    ("generate", lambda body: decode_generate(body, GENERATE_CONFIG), CALLERS),
    ("response head", read_response_head, UPSTREAMS),
    ("response", read_response, UPSTREAMS),
    ("json answer", lambda message: encode_http_infer(message, ALL_JSON, "r").body, UPSTREAMS),
    ("binary answer", lambda message: encode_http_infer(message, ALL_BINARY, "r").body, UPSTREAMS),
    ("generate answer", lambda message: encode_generate(message, "r"), UPSTREAMS),
    ("bool", metadata.decode_bool, UPSTREAMS),
    ("model metadata", metadata.decode_model_metadata, UPSTREAMS),
    ("server metadata", metadata.decode_server_metadata, UPSTREAMS),
    ("index", repository.decode_index, UPSTREAMS),
    ("index request", repository.decode_index_request, CALLERS),
    ("index body", repository.decode_index_body, CALLERS),
    ("statistics", statistics.split_statistics, UPSTREAMS),
    ("statistics of one", statistics.decode_statistics, UPSTREAMS),
    (
        "statistics in json",
        lambda message: statistics.statistics_to_json(statistics.decode_statistics(message)),
        UPSTREAMS,
    ),
    ("config", summarise_config, UPSTREAMS),
)

BODY = (
    b'{"id":"r","parameters":{"sequence_id":5,"a":1.5,"binary_data_output":true},"inputs":[{"name":"x","datatype":'
    b'"FP32","shape":[1,2],"data":[[1.5,NaN]]},{"name":"s","datatype":"BYTES","shape":[1],"data":["\xc3\xbc"]},{"name":"b"'
    b',"datatype":"INT64","shape":[1],"data":[9]}],"outputs":[{"name":"y","parameters":{"classification":2}}]}'
)
REQUEST = service_pb2.ModelInferRequest(
    model_name="m",
    model_version="1",
    id="r",
    parameters={"a": {"int64_param": 1}, "b": {"double_param": 2.0}, "shared_memory_region": {"string_param": "s"}},
    inputs=[
        {"name": "x", "datatype": "FP32", "shape": [1, 2], "contents": {"fp32_contents": [1, 2]}},
        {"name": "y", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [b"a"]}},
    ],
    outputs=[{"name": "o", "parameters": {"classification": {"int64_param": 1}}}],
).SerializeToString()
RESPONSE = service_pb2.ModelInferResponse(
    model_name="m",
    model_version="1",
    id="r",
    parameters={"a": {"bool_param": True}},
    outputs=[
        {"name": "y", "datatype": "FP32", "shape": [2]},
        {"name": "s", "datatype": "BYTES", "shape": [1]},
        {"name": "b", "datatype": "BOOL", "shape": [1]},
    ],
    raw_output_contents=[struct.pack("<2f", 1, float("nan")), b"\x01\x00\x00\x00a", b"\x01"],
).SerializeToString()

GENERATE_BODY = (
    b'{"id":"r","x":[1.5,NaN,2],"s":["\xc3\xbc","","a"],"parameters":{"b":9,"sequence_id":5,"a":1.5,"c":true,"d":"e"}}'
)
FRAMED_JSON: bytes = (
    b'{"inputs":[{"name":"x","datatype":"FP16","shape":[1],"parameters":{"binary_data_size":2}},{"name":"s","datatype":'
    b'"BYTES","shape":[1],"parameters":{"binary_data_size":5}}],"outputs":[{"name":"y","parameters":{"binary_data":true}}]}'
)
FRAMED = FRAMED_JSON + b"\x00\x3c" + b"\x01\x00\x00\x00a"
CONFIG = service_pb2.ModelConfigResponse(
    config=model_config_pb2.ModelConfig(
        name="m",
        max_batch_size=4,
        input=[{"name": "x", "data_type": "TYPE_FP32", "dims": [-1], "optional": True}],
        instance_group=[{"count": 2, "kind": "KIND_GPU", "gpus": [0]}],
        model_transaction_policy={"decoupled": True},
    )
).SerializeToString()
METADATA = service_pb2.ModelMetadataResponse(
    name="m", versions=["1", "2"], platform="p", inputs=[{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
).SerializeToString()
INDEX = service_pb2.RepositoryIndexResponse(
    models=[{"name": "m", "version": "1", "state": "READY", "reason": "r"}]
).SerializeToString()
INDEX_REQUEST = service_pb2.RepositoryIndexRequest(ready=True).SerializeToString()
INDEX_BODY = b'{"ready":true}'
ROW = service_pb2.ModelStatistics(
    name="m",
    version="1",
    inference_count=3,
    inference_stats={"success": {"count": 3, "ns": 99}},
    batch_stats=[{"batch_size": 2, "compute_infer": {"count": 1, "ns": 5}}],
    memory_usage=[{"type": "GPU", "id": 1, "byte_size": 7}],
    response_stats={"0": {"success": {"count": 1, "ns": 5}}},
)
STATISTICS = service_pb2.ModelStatisticsResponse(model_stats=[ROW]).SerializeToString()
SAMPLES = (
    BODY, FRAMED, REQUEST, RESPONSE, CONFIG, METADATA, INDEX, INDEX_REQUEST, INDEX_BODY, ROW.SerializeToString(),
    STATISTICS, GENERATE_BODY,
)  # fmt: skip

TOKENS = (
    b"1e999", b"-1e999", b"1" * 400, b"NaN", b"Infinity", b"-Infinity", b"null", b"true", b"{}", b"[]", b"[[[[", b'"',
    b"\\ud800", b"\xff", b"\x00", b"9223372036854775808", b"-1", b"1.0", b"[" * 1100, b"\x80" * 11, b"\x0b", b"\x0c",
    b"\xff\xff\xff\xff\x0f", b'"shared_memory_region":"r",', b'"data":[1],', b'"binary_data_size":4,', b"FP16",
    b"BYTES",
)  # fmt: skip


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """A valid body or message, damaged in a few places."""
    mutated = bytearray(draw(st.sampled_from(SAMPLES)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(mutated)))
        kind = draw(st.sampled_from(("flip", "insert", "token", "delete", "cut", "repeat")))
        if kind == "flip" and at < len(mutated):
            mutated[at] = draw(st.integers(0, 255))
        elif kind == "insert":
            mutated[at:at] = draw(st.binary(max_size=4))
        elif kind == "token":
            mutated[at : at + draw(st.integers(0, 6))] = draw(st.sampled_from(TOKENS))
        elif kind == "delete":
            del mutated[at : at + draw(st.integers(1, 20))]
        elif kind == "cut":
            del mutated[at:]
        elif kind == "repeat":
            mutated[at:at] = mutated[at : at + draw(st.integers(1, 60))] * 2
    return bytes(mutated)


def test_each_sample_is_good_for_some_decoder_and_each_decoder_has_a_sample() -> None:
    accepted = {
        name: {index for index, sample in enumerate(SAMPLES) if not feed(decode, sample, blamed)}
        for name, decode, blamed in DECODERS
    }
    assert set.union(*accepted.values()) == set(range(len(SAMPLES)))
    # A tensor's bytes and a number in a header are not like any sample; a boolean is no message with a name.
    assert {name for name, samples in accepted.items() if not samples} <= {"raw", "header length", "bool"}


def feed(decode: Decoder, hostile: bytes, blamed: tuple[Reason, ...]) -> str:
    """Decode; an error must be one of `blamed` and be fit for a client. Any other exception fails the test."""
    message, reason = "", None
    try:
        decode(hostile)
    except GatewayError as error:
        message, reason = error.message, error.reason
    if reason is not None:
        assert reason in blamed
        assert len(message) < 1000
        assert "\n" not in message
    return message


@pytest.mark.parametrize(("decode", "blamed"), [row[1:] for row in DECODERS], ids=[row[0] for row in DECODERS])
@settings(max_examples=150, deadline=None)
@given(hostile=st.one_of(mutations(), st.binary(max_size=80)))
def test_only_gateway_errors_come_out(decode: Decoder, blamed: tuple[Reason, ...], hostile: bytes) -> None:
    feed(decode, hostile, blamed)


@settings(max_examples=300, deadline=None)
@given(mutations())
def test_the_walk_of_fields_ends_or_raises_a_wire_error(hostile: bytes) -> None:
    steps: list[int] = []
    try:
        for _, wire, a, b in protobuf.fields(hostile, 0, len(hostile)):
            assert wire == protobuf.VARINT or 0 <= a <= b <= len(hostile)
            steps.append(b)
    except protobuf.WireError as error:
        steps.append(len(hostile) + 1)
        offset = error.offset
    else:
        offset = 0
    assert 0 <= offset <= len(hostile)
    assert steps == sorted(set(steps))
    assert steps[-1:] != [] or hostile == b""


MEGABYTE = 1 << 20


def tensor(body: str) -> bytes:
    return ('{"inputs":[' + body + "]}").encode()


def field(tag: bytes, payload: bytes) -> bytes:
    return tag + protobuf.varint(len(payload)) + payload


JSON_FLOODS: dict[str, bytes] = {
    "brackets": b"[" * MEGABYTE,
    "objects": b'{"a":' * (MEGABYTE // 5),
    "brackets behind a bare word": b"[NaN," + b"[" * MEGABYTE,
    "deep data": tensor('{"name":"x","datatype":"FP32","shape":[1],"data":' + "[" * 1000 + "]" * 1000 + "}"),
    "uneven data": tensor(
        '{"name":"x","datatype":"FP32","shape":[1],"data":['
        + "0," * (MEGABYTE // 4)
        + "[" * 99
        + "0" * 1
        + "]" * 99
        + "]}"
    ),
    "wide and deep data": tensor(
        '{"name":"x","datatype":"FP32","shape":[1],"data":'
        + "[" * 90
        + ",".join(["[[0]]"] * (MEGABYTE // 6))
        + "]" * 90
        + "}"
    ),
    "empty lists": tensor('{"name":"x","datatype":"FP32","shape":[1],"data":[' + "[]," * (MEGABYTE // 3) + "[]]}"),
    "many inputs": tensor(",".join(['{"name":"x","datatype":"FP32","shape":[0],"data":[]}'] * (MEGABYTE // 52))),
    "many different inputs": tensor(
        ",".join(f'{{"name":"x{index}","datatype":"FP32","shape":[{index}],"data":[]}}' for index in range(4000))
    ),
    "many numbers in a shape": tensor(
        '{"name":"x","datatype":"FP32","shape":[' + "9223372036854775807," * (MEGABYTE // 20) + '1],"data":[]}'
    ),
    "a huge name": tensor('{"name":"' + "x" * MEGABYTE + '","datatype":"FP32","shape":[1],"data":[]}'),
    "many outputs": b'{"inputs":[],"outputs":[' + b'{"name":"y"},' * (MEGABYTE // 13) + b'{"name":"y"}]}',
    "many parameters": b'{"inputs":[],"parameters":{'
    + b",".join(b'"p%d":1' % index for index in range(MEGABYTE // 11))
    + b"}}",
    "a number of a million digits": tensor(
        '{"name":"x","datatype":"FP64","shape":[1],"data":[' + "1" * MEGABYTE + "]}"
    ),
    "a million digits behind a bare word": tensor(
        '{"name":"x","datatype":"FP64","shape":[2],"data":[NaN,' + "1" * MEGABYTE + "]}"
    ),
    "many bare words": tensor(
        '{"name":"x","datatype":"INT8","shape":[1],"data":[' + "NaN," * (MEGABYTE // 4) + "NaN]}"
    ),
    "many byte order marks": b"\xef\xbb\xbf" * (MEGABYTE // 3),
    "escapes": b'{"id":"' + b"\\u0000" * (MEGABYTE // 6) + b'"}',
}

PROTOBUF_FLOODS: dict[str, bytes] = {
    "many names": b"\x0a\x00" * (MEGABYTE // 2),
    "many unknown fields": b"\x40\x00" * (MEGABYTE // 2),
    "many empty inputs": b"\x2a\x00" * (MEGABYTE // 2),
    "many raw entries": b"\x32\x00\x3a\x00" * (MEGABYTE // 4),
    "many parameters": b"".join(field(b"\x22", field(b"\x0a", b"%d" % index)) for index in range(MEGABYTE // 9)),
    "the same parameter": b"\x22\x00" * (MEGABYTE // 2),
    "a value merged many times": field(b"\x22", b"\x12\x02\x08\x01" * (MEGABYTE // 4)),
    "a long shape": field(b"\x2a", field(b"\x1a", b"\x01" * MEGABYTE)),
    "a long unpacked shape": field(b"\x2a", b"\x18\x01" * (MEGABYTE // 2)),
    "unpacked contents": field(b"\x2a", field(b"\x2a", b"\x20\x01" * (MEGABYTE // 2))),
    "overlong varints": b"\x80" * MEGABYTE,
    "a huge length": b"\x2a\xff\xff\xff\xff\x07" + bytes(MEGABYTE),
    "a shape of terabytes": field(b"\x2a", b"\x12\x04FP32" + field(b"\x1a", b"\x80\x80\x80\x80\x80\x10" * 64)),
    "tiny strings as contents": field(b"\x2a", field(b"\x2a", b"\x42\x00" * (MEGABYTE // 2)))
    + field(b"\x32", field(b"\x12", field(b"\x0a", b"shared_memory_region"))),
    "many tiny strings": field(b"\x2a", b"\x0a\x01s\x12\x05BYTES" + field(b"\x1a", b"\x80\x80\x10"))
    + field(b"\x32", bytes(MEGABYTE)),
}


@pytest.mark.parametrize("hostile", JSON_FLOODS.values(), ids=JSON_FLOODS)
def test_a_megabyte_of_hostile_json_takes_bounded_time(hostile: bytes) -> None:
    started = time.process_time()
    message = feed(decode_http_infer, hostile, CALLERS)
    assert time.process_time() - started < 5
    assert message or hostile in (JSON_FLOODS["many different inputs"],)


@pytest.mark.parametrize("hostile", PROTOBUF_FLOODS.values(), ids=PROTOBUF_FLOODS)
def test_a_megabyte_of_hostile_protobuf_takes_bounded_time(hostile: bytes) -> None:
    started = time.process_time()
    for _, decode, blamed in DECODERS:
        if decode not in (decode_http_infer, parse_header_length):
            feed(decode, hostile, blamed)
    assert time.process_time() - started < 10


@pytest.mark.parametrize("flood", ["many names", "many raw entries"])
def test_floods_of_fields_are_refused(flood: str) -> None:
    with pytest.raises(GatewayError, match="more than"):
        read_head(PROTOBUF_FLOODS[flood])
