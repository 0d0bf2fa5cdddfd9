"""Tensors over HTTP as bytes, directly and through the gateway: every datatype, in JSON and binary, at its edges."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from tests.support.differential import Differential
from tests.support.differential_documents import PLAIN, document, one, region, tensor
from tests.support.differential_http import infer
from tests.support.tensors import packed_bytes

# --- elements ----------------------------------------------------------------------------------------------------

GOOD: dict[str, list[str]] = {
    "BOOL": ["true", "false"],
    "UINT8": ["0", "255", "-0"],
    "UINT16": ["0", "65535"],
    "UINT32": ["0", "4294967295"],
    "UINT64": ["0", "18446744073709551615", "9007199254740993"],
    "INT8": ["-128", "127", "-0"],
    "INT16": ["-32768", "32767"],
    "INT32": ["-2147483648", "2147483647"],
    "INT64": ["-9223372036854775808", "9223372036854775807", "9007199254740993", "-9007199254740993"],
    "FP32": ["0.0", "-0.0", "-0", "0", "1", "16777217", "0.1", "1e-45", "1e-46", "7.1e-46", "1e-400",
    "3.4028234663852886e38",
             "3.4028235e38", "1e38", "1E+2", "1e-2", "9007199254740993"],
    "FP64": ["0.0", "-0.0", "-0", "1", "0.1", "5e-324", "1e-400", "1e300", "2.5", "9007199254740993", "123456789"],
    "BYTES": ['""', '"plain"', '"\\u0000"', '"\\ud83d\\ude00"', '"\\u00e9\\n\\"\\\\\\/"', '"über ☃ 😀"',
    '"' + "x" * 70_000 + '"'],
}  # fmt: skip
WORDS = ("NaN", "-NaN", "Inf", "-Inf", "Infinity", "-Infinity")


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("datatype", GOOD)
def test_elements_in_json_become_the_same_bits(differential: Differential, datatype: str, binary: bool) -> None:
    for text in GOOD[datatype] + (list(WORDS) if datatype.startswith("FP") else []):
        differential.check(infer(one(datatype, text, binary=binary)))


ODD_WORDS = (
    "nan",
    "NAN",
    "INF",
    "inf",
    "infinity",
    "+Inf",
    "- Inf",
    "Infinit",
    "Infinityx",
    "NaNN",
    "None",
    "TRUE",
    "undefined",
)
ODD_NUMBERS = ("01", "1.", ".5", "+1", "1e", "0x1", "1_0", "1e400", "--1", "1 2", "1,", "'1'")


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "INT32"])
def test_what_is_no_json_is_refused_by_both(differential: Differential, datatype: str) -> None:
    for text in (*ODD_WORDS, *ODD_NUMBERS):
        differential.check(infer(one(datatype, text)), "bad-json")


WRONG_KIND = {
    "BOOL": ["0", "1", '"true"', "null", "1.0", "{}"],
    "INT32": ["1.0", "1.5", "true", '"1"', "null", "{}", "1e3", "18446744073709551616"],
    "UINT8": ["-1", "1.0", "false", '"1"', "null"],
    "INT64": ["9223372036854775808", "1e3", "-9223372036854775809"],
    "UINT64": ["-1", "18446744073709551616"],
    "FP32": ["true", '"NaN"', "null", "{}"],
    "FP64": ["false", '"1"', "null"],
    "BYTES": ["1", "true", "null", "{}", "1.5"],
}


@pytest.mark.parametrize("datatype", WRONG_KIND)
def test_elements_of_a_wrong_kind_are_refused_by_both(differential: Differential, datatype: str) -> None:
    for text in WRONG_KIND[datatype]:
        differential.check(infer(one(datatype, text)), "bad-json")


OUT_OF_RANGE = {
    "UINT8": ["256", "18446744073709551615"],
    "UINT16": ["65536"],
    "UINT32": ["4294967296"],
    "INT8": ["128", "-129"],
    "INT16": ["32768"],
    "INT32": ["2147483648", "-2147483649"],
    "FP32": ["1e39", "3.4028236e38", "-1e300"],
}


@pytest.mark.parametrize("datatype", OUT_OF_RANGE)
def test_numbers_beyond_their_datatype_are_refused_by_the_gateway_alone(
    differential: Differential, datatype: str
) -> None:
    for text in OUT_OF_RANGE[datatype]:
        differential.check(infer(one(datatype, text)), "json-range")


def test_doubles_are_exact_here_and_near_on_triton(differential: Differential) -> None:
    for text in ("0.9680488278733529", "225.84655654110261", "75677583731941381646"):
        for binary in (True, False):
            differential.check(infer(one("FP64", text, binary=binary)), "json-doubles")


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_has_no_json_form(differential: Differential, datatype: str) -> None:
    for text in ("1", "1.5", "NaN"):
        differential.check(infer(one(datatype, text)))
    raw = {"inputs": [tensor(f"INPUT_{datatype}", datatype, [1], binary_data_size=2)]}
    differential.check(infer(raw, b"\x00\x3c"))


SHAPES: list[tuple[Any, Any]] = [
    ([0], []), ([0], [[]]), ([0], [[], [[]]]), ([2], [[1, 2]]), ([2], [[1], [2]]), ([2], [1, [2]]), ([2], [[[1]], 2]),
    ([], [1]), ([], 1), ([], []), ([1, 1], [1]), ([1, 2, 1], [1, 2]),
]  # fmt: skip
BAD_SHAPES: list[tuple[Any, Any]] = [
    ([1], []), ([3], [1, 2]), ([1], [1, 2]), ([0], [1]), ([2], [[1, 2], [3]]), ([-1], [1]), ([1.0], [1]), (["1"], [1]),
    ([True], [1]), ([2**64], [1]), (None, [1]), (5, [1]), ("1", [1]), ([None], [1]), ([[1]], [1]), ({}, [1]), ([1], 1),
    ([1], "1"), ([1], {}), ([1], True),
]  # fmt: skip


@pytest.mark.parametrize(("name", "datatype"), [("INPUT_FP32", "FP32"), ("INPUT_INT64", "INT64")])
def test_data_may_be_nested_in_any_way_and_must_fill_the_shape(
    differential: Differential, name: str, datatype: str
) -> None:
    for shape, data in SHAPES:
        differential.check(infer(document((tensor(name, datatype, shape, data),))))
    for shape, data in BAD_SHAPES:
        differential.check(infer(document((tensor(name, datatype, shape, data),))), "bad-json")


MATRICES = {"FP32": "4", "BOOL": "1", "INT64": "8", "FP16": "2", "BF16": "2"}


@pytest.mark.parametrize("datatype", MATRICES)
def test_empty_dimensions_answer_the_same_in_every_form(differential: Differential, datatype: str) -> None:
    size = int(MATRICES[datatype])
    for shape in ([0, 0], [0, 5], [2, 0], [1, 1], [2, 3]):
        count = shape[0] * shape[1]
        raw = bytes(range(count * size)) if datatype != "BOOL" else bytes(i & 1 for i in range(count))
        name = f"INPUT_MATRIX_{datatype}"
        for wish in (True, False):
            entry = tensor(name, datatype, shape, binary_data_size=len(raw))
            differential.check(infer(document((entry,), parameters={"binary_data_output": wish}), raw, framed=True))
        if datatype in ("FP32", "INT64"):
            differential.check(infer(document((tensor(name, datatype, shape, list(range(count))),))))


# --- binary ------------------------------------------------------------------------------------------------------

PAYLOADS = {
    "FP32": struct.pack("<8I", 0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000, 1, 0x7F800000, 0xFF800000, 0x7F7FFFFF),
    "FP64": struct.pack("<5Q", 0x7FF8000000000001, 0xFFF0000000000001, 1, 1 << 63, 0x7FEFFFFFFFFFFFFF),
    "FP16": struct.pack("<5H", 0x7E01, 0xFC01, 1, 0x8000, 0x7BFF),
    "BF16": struct.pack("<5H", 0x7FC1, 0xFF81, 1, 0x8000, 0x7F7F),
    "BOOL": b"\x00\x01\x01\x00",
    "UINT8": bytes(range(256)),
    "INT8": bytes(range(256)),
    "UINT16": b"\x00\x00\xff\xff",
    "INT16": b"\x00\x80\xff\x7f",
    "UINT32": b"\x00\x00\x00\x00\xff\xff\xff\xff",
    "INT32": b"\x00\x00\x00\x80\xff\xff\xff\x7f",
    "UINT64": bytes(8) + b"\xff" * 8,
    "INT64": bytes(7) + b"\x80" + b"\xff" * 7 + b"\x7f",
}


@pytest.mark.parametrize("datatype", PAYLOADS)
def test_binary_tensors_keep_every_bit(differential: Differential, datatype: str) -> None:
    raw = PAYLOADS[datatype]
    size = {"FP16": 2, "BF16": 2, "BOOL": 1}.get(datatype) or int(datatype.lstrip("UINTFP")) // 8
    entry = tensor(f"INPUT_{datatype}", datatype, [len(raw) // size], binary_data_size=len(raw))
    for wish in (True, False, None):
        parameters = None if wish is None else {"binary_data_output": wish}
        differential.check(infer(document((entry,), parameters=parameters), raw))
        differential.check(infer(document((entry,), [{"name": f"OUTPUT_{datatype}"}]), raw))


def test_bytes_elements_keep_every_bit(differential: Differential) -> None:
    for elements in ([], [b""], [b"\x00"], [b"a", b"", "é".encode()], [b"x" * 100_000]):
        raw = packed_bytes(*elements)
        entry = tensor("INPUT_BYTES", "BYTES", [len(elements)], binary_data_size=len(raw))
        for wish in (True, False):
            differential.check(infer(document((entry,), parameters={"binary_data_output": wish}), raw, framed=True))


def test_bytes_that_are_not_text_go_as_binary_data_only(differential: Differential) -> None:
    raw = packed_bytes(b"\x00\xff", b"")
    entry = tensor("INPUT_BYTES", "BYTES", [2], binary_data_size=len(raw))
    differential.check(infer(document((entry,), parameters={"binary_data_output": True}), raw))
    differential.check(infer(document((entry,)), raw), "json-text")
    differential.check(infer(one("BYTES", '"x"').replace(b'"x"', b'"\xff"')), "json-text")


@pytest.mark.parametrize(
    "raw", [b"abc", b"\x05\0\0\0abc", b"\xff\xff\xff\xff", packed_bytes(b"a", b"b"), b"", b"\0\0\0"]
)
def test_bytes_that_are_badly_packed_are_refused_by_both(differential: Differential, raw: bytes) -> None:
    for wish in (True, False):
        entry = tensor("INPUT_BYTES", "BYTES", [1], binary_data_size=len(raw))
        differential.check(infer(document((entry,), parameters={"binary_data_output": wish}), raw, framed=True))


def test_binary_sizes_must_fit_their_tensors_and_the_body(differential: Differential) -> None:
    for shape, size, tail in (
        ([2], 8, 7), ([2], 8, 9), ([2], 7, 7), ([2], 9, 9), ([2], 4, 4), ([2], 0, 0), ([0], 0, 0), ([0], 0, 1),
        ([2], 2**40, 8),
        ([2], 8, 0), ([1, 2], 8, 8),
    ):  # fmt: skip
        entry = tensor("INPUT_FP32", "FP32", shape, binary_data_size=size)
        differential.check(infer(document((entry,)), bytes(tail), framed=True))
    wrongs: tuple[Any, ...] = (-1, "8", 8.0, True, None, [], 2**64)
    for wrong in wrongs:
        entry = tensor("INPUT_FP32", "FP32", [2], binary_data_size=wrong)
        differential.check(infer(document((entry,)), bytes(8)), "bad-json")


def test_binary_and_json_inputs_mix_in_any_order(differential: Differential) -> None:
    a = tensor("INPUT_FP32", "FP32", [2], binary_data_size=8)
    b = tensor("INPUT_BYTES", "BYTES", [1], binary_data_size=5)
    for inputs in ((PLAIN, a), (a, PLAIN), (a, PLAIN, b), (b, a), (b, PLAIN, a)):
        tails = {"INPUT_FP32": struct.pack("<2f", 1, -2), "INPUT_BYTES": packed_bytes(b"\x01")}
        tail = b"".join(tails[each["name"]] for each in inputs if each["name"] in tails)
        for wish in (True, False):
            differential.check(infer(document(inputs, parameters={"binary_data_output": wish}), tail))


def test_an_input_has_its_data_in_one_place(differential: Differential) -> None:
    binary = tensor("INPUT_FP32", "FP32", [2], [1, 2], binary_data_size=8)
    differential.check(infer(document((binary,)), bytes(8)))
    differential.check(infer(document((tensor("INPUT_FP32", "FP32", [2]),))))
    differential.check(infer(document((tensor("INPUT_FP32", "FP32", [2], binary_data_size=8),))))
    for name in ("r", None, 5):
        for entry in (
            tensor("INPUT_FP32", "FP32", [2], **region(name)),
            tensor("INPUT_FP32", "FP32", [2], [1, 2], **region(name)),
        ):
            differential.check(infer(document((entry,))), "shared-memory")


@pytest.mark.parametrize("megabytes", [1, 4])
def test_large_tensors_keep_every_bit(differential: Differential, megabytes: int) -> None:
    count = megabytes << 18
    raw = struct.pack(f"<{count}I", *((i * 2654435761) & 0x7F7FFFFF for i in range(count)))
    entry = tensor("INPUT_FP32", "FP32", [count], binary_data_size=len(raw))
    differential.check(infer(document((entry,), parameters={"binary_data_output": True}), raw))
    few = min(count, 20_000)
    entry = tensor("INPUT_FP32", "FP32", [few], binary_data_size=4 * few)
    differential.check(infer(document((entry,)), raw[: 4 * few]))
