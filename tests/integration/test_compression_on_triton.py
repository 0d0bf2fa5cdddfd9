"""Compression over HTTP, directly and through the gateway: the same choice, status and, unpacked, the same bytes."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.http as sync_http
import tritonclient.http.aio as aio_http

from deploy.local import LocalFleet
from tests.support.field_http import ask
from tests.support.gateway_process import GatewayProcess
from tests.support.http_answer import Answer
from tests.unit.test_content_coding import SEEN_ON_TRITON

INFER = "/v2/models/identity/infer"
VALUES = np.arange(600, dtype=np.float32)
JSON_BODY = json.dumps(
    {"inputs": [{"name": "INPUT_FP32", "datatype": "FP32", "shape": [600], "data": VALUES.tolist()}]}
).encode()
HEAD = json.dumps(
    {
        "inputs": [
            {"name": "INPUT_FP32", "datatype": "FP32", "shape": [600], "parameters": {"binary_data_size": 2400}}
        ],
        "parameters": {"binary_data_output": True},
    },
    indent=40,
).encode()
BINARY = {"Inference-Header-Content-Length": str(len(HEAD))}
UNPACK: dict[str | None, Callable[[bytes], bytes]] = {
    None: bytes,
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}


def unpacked(answer: Answer) -> bytes:
    coding = answer.headers.get("content-encoding")
    return UNPACK[coding](answer.body)


def both(fleet: LocalFleet, gateway: GatewayProcess, body: bytes, headers: dict[str, str]) -> tuple[Answer, Answer]:
    direct = ask(fleet["triton-0"].spec.http_address, INFER, body, headers)
    return direct, ask(gateway.http, INFER, body, headers)


@pytest.mark.parametrize(("wish", "coding"), SEEN_ON_TRITON, ids=lambda value: repr(value))
def test_accept_encoding_is_understood_alike(
    fleet: LocalFleet, gateway: GatewayProcess, wish: str | None, coding: bytes
) -> None:
    headers = {} if wish is None else {"Accept-Encoding": wish}
    direct, through = both(fleet, gateway, JSON_BODY, headers)
    assert direct.status == through.status == 200
    expected = None if coding == b"identity" else coding.decode()
    assert direct.headers.get("content-encoding") == expected
    assert through.headers.get("content-encoding") == expected
    assert json.loads(unpacked(direct)) == json.loads(unpacked(through))


@pytest.mark.parametrize("wish", ["gzip", "deflate", "identity"])
def test_binary_answers_count_the_unpacked_json_alike(fleet: LocalFleet, gateway: GatewayProcess, wish: str) -> None:
    body = HEAD + VALUES.tobytes()
    direct, through = both(fleet, gateway, body, {**BINARY, "Accept-Encoding": wish})
    for answer in (direct, through):
        plain = unpacked(answer)
        length = int(answer.headers["inference-header-content-length"])
        assert plain[length:] == VALUES.tobytes()
        assert json.loads(plain[:length])["model_name"] == "identity"
    assert direct.headers["content-type"] == through.headers["content-type"]


PACK: dict[str, Any] = {"gzip": gzip.compress, "deflate": zlib.compress}


@pytest.mark.parametrize("said", PACK)
@pytest.mark.parametrize("done", PACK)
def test_compressed_requests_are_read_alike_whichever_of_the_two_names_they_carry(
    fleet: LocalFleet, gateway: GatewayProcess, said: str, done: str
) -> None:
    packed = PACK[done](HEAD + VALUES.tobytes())
    assert len(HEAD) > 500
    direct, through = both(fleet, gateway, packed, {**BINARY, "Content-Encoding": said})
    assert direct.status == through.status == 200
    for answer in (direct, through):
        assert answer.body.endswith(VALUES.tobytes())


@pytest.mark.parametrize("coding", ["br", "GZIP", "x-gzip", "gzip, deflate", "gzip, identity", "", "zstd"])
def test_codings_that_are_not_taken_are_501_with_those_that_are(
    fleet: LocalFleet, gateway: GatewayProcess, coding: str
) -> None:
    for answer in both(fleet, gateway, JSON_BODY, {"Content-Encoding": coding}):
        assert answer.status == 501
        assert answer.headers["accept-encoding"] == "gzip, deflate"
        assert answer.error.startswith("Unsupported compression type")


def test_an_empty_compressed_body_is_400_in_the_same_words(fleet: LocalFleet, gateway: GatewayProcess) -> None:
    direct, through = both(fleet, gateway, b"", {"Content-Encoding": "gzip"})
    assert (direct.status, direct.error) == (through.status, through.error) == (400, "nothing to be decompressed")


def test_deviation_compressed_body_what_triton_takes_in_part_is_refused(
    fleet: LocalFleet, gateway: GatewayProcess
) -> None:
    """If Triton begins to refuse these, the row can go."""
    packed = gzip.compress(JSON_BODY)
    for damaged in (packed[:-8], packed[:-8] + bytes(8), packed + b"more", packed + packed):
        direct, through = both(fleet, gateway, damaged, {"Content-Encoding": "gzip"})
        assert (direct.status, through.status) == (200, 400)
        assert "cannot be decompressed" in through.error


@pytest.mark.parametrize("request_coding", [None, "gzip", "deflate"])
@pytest.mark.parametrize("response_coding", [None, "gzip", "deflate"])
@pytest.mark.parametrize("flavour", ["http", "http.aio"])
async def test_unmodified_clients_see_no_difference(
    gateway: GatewayProcess, flavour: str, request_coding: str | None, response_coding: str | None
) -> None:
    options = {"request_compression_algorithm": request_coding, "response_compression_algorithm": response_coding}
    if flavour == "http":
        client = sync_http.InferenceServerClient(gateway.http)
        tensor = sync_http.InferInput("INPUT_FP32", [600], "FP32")
        tensor.set_data_from_numpy(VALUES)
        result = client.infer("identity", [tensor], **options)
        client.close()
    else:
        async_client = aio_http.InferenceServerClient(gateway.http)
        tensor = aio_http.InferInput("INPUT_FP32", [600], "FP32")
        tensor.set_data_from_numpy(VALUES)
        result = await async_client.infer("identity", [tensor], **options)
        await async_client.close()
    np.testing.assert_array_equal(result.as_numpy("OUTPUT_FP32"), VALUES)
