"""Inference over gRPC as bytes, directly and through the gateway: contents and raw, outputs, parameters, metadata."""

from __future__ import annotations

import struct
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2

from tests.integration.conftest import ABSENT
from tests.integration.test_differential_elements import PAYLOADS
from tests.support.differential import Differential
from tests.support.differential_grpc import infer_request, tensor, unary
from tests.support.tensors import packed_bytes

FP32 = tensor("INPUT_FP32", "FP32", [2])
RAW = struct.pack("<2f", 1, 2)
X = tensor("x", "FP32", [1, 2])

VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False, True],
    "UINT8": [0, 255],
    "UINT16": [0, 65535],
    "UINT32": [0, 2**32 - 1],
    "UINT64": [0, 2**64 - 1],
    "INT8": [-128, 127],
    "INT16": [-(2**15), 2**15 - 1],
    "INT32": [-(2**31), 2**31 - 1],
    "INT64": [-(2**63), 2**63 - 1, 2**53 + 1],
    "FP32": [1.5, -0.0, float("nan"), float("inf"), 1e-45],
    "FP64": [5e-324, -0.0, float("-inf"), float("nan"), 0.1],
    "BYTES": [b"", b"\x00\xff", "é".encode(), b"x" * 50_000],
}


def call(*arguments: Any, metadata: Any = (), compression: Any = None, timeout_s: float = 20.0, **options: Any) -> Any:
    message = infer_request(*arguments, **options)
    return unary("ModelInfer", message, metadata=metadata, compression=compression, timeout_s=timeout_s)


@pytest.mark.parametrize("datatype", VALUES)
def test_contents_of_every_datatype(differential: Differential, datatype: str) -> None:
    values, name = VALUES[datatype], f"INPUT_{datatype}"
    for count in (len(values), len(values) + 1, len(values) - 1):
        differential.check(call([tensor(name, datatype, [count], values)]))
    differential.check(call([tensor(name, datatype, [0], [])]))
    if datatype in ("FP32", "BOOL", "INT64", "BYTES"):
        for shape in ([0, 5], [2, 0], [1, len(values)], [len(values), 1]):
            count = shape[0] * shape[1]
            differential.check(call([tensor(f"INPUT_MATRIX_{datatype}", datatype, shape, values[:count])]))


def test_contents_beyond_their_datatype(differential: Differential) -> None:
    for datatype, values in (
        ("UINT8", [256, 2**32 - 1]),
        ("INT8", [128, -129]),
        ("UINT16", [65536]),
        ("INT16", [2**20]),
    ):
        differential.check(call([tensor(f"INPUT_{datatype}", datatype, [len(values)], values)]))


@pytest.mark.parametrize("datatype", PAYLOADS)
def test_raw_contents_keep_every_bit(differential: Differential, datatype: str) -> None:
    raw = PAYLOADS[datatype]
    size = {"FP16": 2, "BF16": 2, "BOOL": 1}.get(datatype) or int(datatype.lstrip("UINTFP")) // 8
    count = len(raw) // size
    differential.check(call([tensor(f"INPUT_{datatype}", datatype, [count])], [raw]))
    for wrong in (raw[:-1], raw + b"\0", b"", raw + raw):
        differential.check(call([tensor(f"INPUT_{datatype}", datatype, [count])], [wrong]))
    differential.check(call([tensor(f"INPUT_{datatype}", datatype, [0])], [b""]))


def test_bytes_as_raw_contents(differential: Differential) -> None:
    for shape, raw in (
        ([2], packed_bytes(b"\0\xff", b"")), ([0], b""), ([1], b"abc"), ([1], packed_bytes(b"a", b"b")), ([2],
        packed_bytes(b"a")),
        ([1], b"\xff\xff\xff\xff"), ([1], b""), ([0], packed_bytes(b"")), ([1], packed_bytes(b"x" * 200_000)),
    ):  # fmt: skip
        differential.check(call([tensor("INPUT_BYTES", "BYTES", shape)], [raw]))


def test_data_in_two_places_or_in_none(differential: Differential) -> None:
    integers = tensor("INPUT_INT32", "INT32", [2])
    for inputs, raw in (
        ([tensor("INPUT_FP32", "FP32", [2], [1, 2])], [RAW]),
        ([tensor("INPUT_FP32", "FP32", [2], [1, 2]), integers], [RAW]),
        ([FP32, tensor("INPUT_INT32", "INT32", [2], [1, 2])], [RAW]),
        ([FP32], [RAW, RAW]), ([FP32], []), ([FP32, integers], [RAW]), ([], []), ([], [RAW]), ([FP32], [RAW, b""]),
        ([tensor("INPUT_FP32", "FP32", [0])], []), ([FP32, integers], [RAW, struct.pack("<2i", 1, 2)]),
    ):  # fmt: skip
        differential.check(call(inputs, raw))
    for datatype, field, value in (
        ("FP32", "fp64_contents", 1.0),
        ("FP16", "fp32_contents", 1.0),
        ("BF16", "int_contents", 1),
    ):
        wrong = tensor(f"INPUT_{datatype}", datatype, [1])
        getattr(wrong.contents, field).append(value)
        differential.check(call([wrong]))
    both = tensor("INPUT_FP32", "FP32", [1], [1])
    both.contents.int_contents.append(1)
    differential.check(call([both]))


def test_inputs_that_the_model_does_not_take(differential: Differential) -> None:
    for name, datatype, shape in (
        ("INPUT_FP32", "FP32", [-1]), ("INPUT_FP32", "FP32", [-2]), ("INPUT_FP32", "FP32", []), ("INPUT_FP32", "FP32",
        [1, 2]),
        ("INPUT_FP32", "", [2]), ("INPUT_FP32", "nosuch", [2]), ("INPUT_FP32", "INT32", [2]), ("INPUT_FP32", "fp32",
        [2]),
        ("", "FP32", [2]), ("x", "FP32", [2]), ("é", "FP32", [2]),
    ):  # fmt: skip
        differential.check(call([tensor(name, datatype, shape)], [RAW]))
    differential.check(call([FP32, FP32], [RAW, RAW]))
    for shape, raw in (
        ([9, 1], bytes(36)),
        ([8, 1], bytes(32)),
        ([0, 2], b""),
        ([2], RAW),
        ([1, 1, 2], RAW),
        ([1, 0], b""),
    ):
        differential.check(call([tensor("x", "FP32", shape)], [raw], model="mixed", outputs=["y"]))
    differential.check(call([X, X], [RAW, RAW], model="mixed"))
    differential.check(call([], [], model="mixed"))


OUTPUTS: list[list[Any]] = [
    [], ["y"], ["z", "y"], ["y", "y"], [("y", {"classification": 1}), "y"], ["y", ("y", {"classification": 1})],
    ["nosuch"], [""],
    ["h"], ["h", "y", "z"], ["y", "nosuch"],
]  # fmt: skip
CLASSES: tuple[Any, ...] = (
    0, 1, 2, 3, 100, -1, 2**31, 2**32, 2**32 + 1, 2**63 - 1, "1", True, 1.0, ("uint64_param", 1), None,
)  # fmt: skip


def test_outputs_and_classification(differential: Differential) -> None:
    for outputs in OUTPUTS:
        differential.check(call([X], [RAW], model="mixed", outputs=outputs))
    for k in CLASSES:
        for name in ("y", "z", "h"):
            differential.check(call([X], [RAW], model="mixed", outputs=[(name, {"classification": k})]))
    for parameters in ({"binary_data": True}, {"unknown": 1}, {"": "x"}):
        differential.check(call([X], [RAW], model="mixed", outputs=[("y", parameters)]))
    user, items = (
        tensor("user", "FP32", [16], [0.25] * 16),
        tensor("items", "FP32", [3, 16], [i / 7 for i in range(48)]),
    )
    for k in (1, 3, 4, 5):
        wanted = [(name, {"classification": k}) for name in ("scores", "factors", "order")]
        differential.check(call([user, items], model="ranker", outputs=wanted))


NAMES = (
    "own", "", "é", "priority", "timeout", "sequence_id", "sequence_start", "sequence_end", "headers",
    "binary_data_output",
    "triton_x", "triton_enable_empty_final_response", "triton_final_response", "sluice_x",
)  # fmt: skip
PARAMETERS: tuple[Any, ...] = (
    0, 1, -1, 2**63 - 1, -(2**63), "", "a", "é", "x" * 129, True, False, 1.5, float("nan"), ("uint64_param", 0),
    ("uint64_param", 2**64 - 1), None,
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_every_kind(differential: Differential, name: str) -> None:
    for value in PARAMETERS:
        differential.check(call([FP32], [RAW], parameters={name: value}))
        if name in ("priority", "timeout"):
            differential.check(call([X], [RAW], model="mixed", parameters={name: value}))


def test_sequence_flags_on_a_model_without_sequences(differential: Differential) -> None:
    for name in (0, 1, -1, "", "a", "x" * 128, "x" * 129, "é" * 64, "é" * 65):
        for start, end in ((True, True), (True, False), (False, True)):
            parameters = {"sequence_id": name, "sequence_start": start, "sequence_end": end}
            differential.check(call([FP32], [RAW], parameters=parameters))


def test_ids_come_back_as_they_went(differential: Differential) -> None:
    for text in ("", "a", "é☃", "\0", "a\0b", "\n", "x" * 10_000):
        differential.check(call([FP32], [RAW], id=text))


def test_models_and_versions(differential: Differential) -> None:
    for model in ("identity", "nosuch", "", "streamer", "é", "a/b", "x" * 300):
        for version in ("", "1", "7", "0"):
            differential.check(call([FP32], [RAW], model=model, model_version=version))
    for version in ("01", "1.0", " 1", "1 ", "-1", "a", "9223372036854775808", "\0"):
        differential.check_any(call([FP32], [RAW], model_version=version))
        differential.check_any(call([FP32], [RAW], model="nosuch", model_version=version))
    differential.check(call([FP32], [RAW], model=ABSENT), "no-replica")


def test_shared_memory(differential: Differential) -> None:
    message = infer_request([FP32], [RAW])
    message.inputs[0].parameters["shared_memory_region"].string_param = "r"
    differential.check(unary("ModelInfer", message), "shared-memory")
    wanted = [("y", {"shared_memory_region": "r", "shared_memory_byte_size": 8})]
    differential.check(call([X], [RAW], model="mixed", outputs=wanted), "shared-memory")
    # The same words anywhere else mean nothing.
    differential.check(call([FP32], [RAW], parameters={"shared_memory_region": "r"}))
    text = packed_bytes(b"shared_memory_region")
    differential.check(call([tensor("INPUT_BYTES", "BYTES", [1])], [text], id="shared_memory_region"))


def test_fields_in_any_order_and_of_a_later_protocol(differential: Differential) -> None:
    plain = infer_request([FP32], [RAW], id="a").SerializeToString()
    raw = service_pb2.ModelInferRequest(raw_input_contents=[RAW]).SerializeToString()
    rest = infer_request([FP32], [], id="a").SerializeToString()
    for more in (b"\xa0\x06\x05", b"\xa2\x06\x03abc", b"\xa5\x06abcd"):
        differential.check(unary("ModelInfer", plain + more))
        differential.check(unary("ModelInfer", more + plain))
    differential.check(unary("ModelInfer", raw + rest))
    # Of a field that comes twice the last counts.
    twice = service_pb2.ModelInferRequest(model_name="nosuch", model_version="9", id="b").SerializeToString()
    again = service_pb2.ModelInferRequest(model_name="identity", model_version="1", id="c").SerializeToString()
    differential.check(unary("ModelInfer", twice + plain + again))
    differential.check(unary("ModelInfer", plain + twice))
    differential.check(unary("ModelInfer", b""))


@pytest.mark.parametrize(
    "compression", [grpc.Compression.Gzip, grpc.Compression.Deflate, grpc.Compression.NoCompression]
)
def test_compressed_messages(differential: Differential, compression: Any) -> None:
    count = 50_000
    raw = struct.pack(f"<{count}f", *(i / 3 for i in range(count)))
    for inputs, data in (([FP32], RAW), ([tensor("INPUT_FP32", "FP32", [count])], raw)):
        differential.check(call(inputs, [data], compression=compression))
    differential.check(call([FP32], [RAW[:3]], compression=compression))


def test_large_tensors(differential: Differential) -> None:
    raw = bytes(range(256)) * (1 << 14)
    differential.check(call([tensor("INPUT_UINT8", "UINT8", [len(raw)])], [raw]))
    differential.check(call([tensor("INPUT_BYTES", "BYTES", [1])], [packed_bytes(raw)]))


def test_metadata_of_any_kind_changes_nothing(differential: Differential) -> None:
    for metadata in (
        (("x-any", "value"),), (("x-any", ""),), (("x-any-bin", b"\x00\xff"),), (("x-any", "a" * 7000),), (("x-any",
        "a"), ("x-any", "b")),
        (("inference-header-content-length", "5"),), (("triton_grpc_error", "true"),), (("user-agent", "other"),),
    ):  # fmt: skip
        differential.check(call([FP32], [RAW], metadata=metadata))


def test_metadata_beyond_every_limit_is_refused_alike(differential: Differential) -> None:
    differential.check(call([FP32], [RAW], metadata=(("x-any", "a" * 40_000),)))


def test_deadlines_end_calls_alike(differential: Differential) -> None:
    slow = {"straggle_ms": 400}
    differential.check(call([tensor("work", "FP32", [1, 1], [1])], model="accel", parameters=slow, timeout_s=0.1))
