"""The same call made directly and through the gateway, with all four unmodified Triton clients: the same tensors,
status and shape of error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as sync_grpc
import tritonclient.grpc.aio as aio_grpc
import tritonclient.http as sync_http
import tritonclient.http.aio as aio_http
from tritonclient.utils import InferenceServerException

from deploy.local import LocalFleet
from gateway.wire.kserve.metadata import REFUSED_EXTENSIONS
from tests.support.gateway_process import GatewayProcess

FLAVOURS = ("http", "http.aio", "grpc", "grpc.aio")


class Client:
    """One flavour of tritonclient at one address, always awaited."""

    def __init__(self, flavour: str, address: str) -> None:
        self.flavour = flavour
        self.module: Any = {"http": sync_http, "http.aio": aio_http, "grpc": sync_grpc, "grpc.aio": aio_grpc}[flavour]
        self._client = self.module.InferenceServerClient(address)

    async def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        result = getattr(self._client, name)(*arguments, **options)
        return await result if asyncio.iscoroutine(result) else result

    async def close(self) -> None:
        result = self._client.close()
        if asyncio.iscoroutine(result):
            await result

    def tensor(self, name: str, values: Any, datatype: str, *, binary: bool = True) -> Any:
        tensor = self.module.InferInput(name, list(values.shape), datatype)
        if "http" in self.flavour:
            tensor.set_data_from_numpy(values, binary_data=binary)
        else:
            tensor.set_data_from_numpy(values)
        return tensor

    def output(self, name: str, *, binary: bool = True, class_count: int = 0) -> Any:
        if "http" in self.flavour:
            return self.module.InferRequestedOutput(name, binary_data=binary, class_count=class_count)
        return self.module.InferRequestedOutput(name, class_count=class_count)


@pytest.fixture(params=FLAVOURS)
async def pair(
    request: pytest.FixtureRequest, fleet: LocalFleet, gateway: GatewayProcess
) -> AsyncIterator[tuple[Client, Client]]:
    """(direct, through the gateway)."""
    flavour = request.param
    server = fleet["triton-0"].spec
    direct = Client(flavour, server.http_address if "http" in flavour else server.grpc_address)
    through = Client(flavour, gateway.http if "http" in flavour else gateway.grpc)
    yield direct, through
    await direct.close()
    await through.close()


def plain(response: Any) -> dict[str, Any]:
    """A response without tensors, in one form for both protocols."""
    if isinstance(response, dict):
        parameters = dict(response.get("parameters", {}))
        outputs = [(o["name"], o["datatype"], list(o["shape"])) for o in response["outputs"]]
        return {
            "model": response["model_name"],
            "version": response["model_version"],
            "id": response.get("id", ""),
            "parameters": parameters,
            "outputs": outputs,
        }
    return {
        "model": response.model_name,
        "version": response.model_version,
        "id": response.id,
        "parameters": {k: v.WhichOneof("parameter_choice") for k, v in response.parameters.items()},
        "outputs": [(o.name, o.datatype, list(o.shape)) for o in response.outputs],
    }


async def both(pair: tuple[Client, Client], make: Callable[[Client], tuple[Any, ...]], **options: Any) -> Any:
    """Make the same inference on both sides and compare everything. Returns the gateway's result."""
    direct, through = pair
    expected = await direct.call("infer", *make(direct), **options)
    actual = await through.call("infer", *make(through), **options)
    assert plain(actual.get_response()) == plain(expected.get_response())
    for name, _, _ in plain(expected.get_response())["outputs"]:
        left, right = expected.as_numpy(name), actual.as_numpy(name)
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    return actual


FEATURES = np.random.default_rng(5).random((3, 12), dtype=np.float32)


@pytest.mark.parametrize("version", ["1", "2"])
async def test_fraud_answers_the_same_for_each_version(pair: tuple[Client, Client], version: str) -> None:
    result = await both(
        pair, lambda c: ("fraud", [c.tensor("features", FEATURES, "FP32")]), model_version=version, request_id="abc"
    )
    assert plain(result.get_response())["version"] == version
    assert plain(result.get_response())["id"] == "abc"


async def test_json_and_mixed_forms_answer_the_same(pair: tuple[Client, Client]) -> None:
    for binary_in in (True, False):
        for binary_out in (True, False):
            await both(
                pair,
                lambda c, i=binary_in, o=binary_out: (  # type: ignore[misc]
                    "fraud",
                    [c.tensor("features", FEATURES, "FP32", binary=i)],
                    "2",
                    [c.output("probability", binary=o)],
                ),
            )


DTYPES: dict[str, Any] = {
    "FP16": np.array([0.5, -0.0, np.inf, 65504.0], dtype=np.float16),
    "FP32": np.array([0.0, -0.0, 1.5e-40, 3.4e38, np.inf, -np.inf, 0.1, -7.25], dtype=np.float32),
    "FP64": np.array([0.1, 1e300, -5e-324], dtype=np.float64),
    "INT8": np.array([-128, 127, 0], dtype=np.int8),
    "INT16": np.array([-(2**15), 2**15 - 1], dtype=np.int16),
    "INT32": np.array([-(2**31), 2**31 - 1, 0], dtype=np.int32),
    "INT64": np.array([-(2**63), 2**63 - 1, 9007199254740993], dtype=np.int64),
    "UINT8": np.arange(256, dtype=np.uint8),
    "UINT16": np.array([0, 2**16 - 1], dtype=np.uint16),
    "UINT32": np.array([0, 2**32 - 1], dtype=np.uint32),
    "UINT64": np.array([0, 2**64 - 1], dtype=np.uint64),
    "BOOL": np.array([True, False, True]),
    "BYTES": np.array(["", "plain", "über ☃ \U0001f600", 'line\nbreak "quoted" \\'], dtype=object),
}


@pytest.mark.parametrize("datatype", list(DTYPES))
async def test_every_datatype_comes_back_as_it_went(pair: tuple[Client, Client], datatype: str) -> None:
    name = identity_input(datatype)
    await both(pair, lambda c: ("identity", [c.tensor(name, DTYPES[datatype], datatype)]))


@pytest.mark.parametrize("datatype", [name for name in DTYPES if name != "FP16"])
async def test_every_datatype_survives_json(pair: tuple[Client, Client], datatype: str) -> None:
    name = identity_input(datatype)
    output = name.replace("INPUT", "OUTPUT")
    await both(
        pair,
        lambda c: (
            "identity",
            [c.tensor(name, DTYPES[datatype], datatype, binary=False)],
            "",
            [c.output(output, binary=False)],
        ),
    )


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (3, 0)])
async def test_empty_tensors_answer_the_same(pair: tuple[Client, Client], shape: tuple[int, ...]) -> None:
    values = np.zeros(shape, dtype=np.float32)
    await both(pair, lambda c: ("identity", [c.tensor("INPUT_MATRIX_FP32", values, "FP32")]))


def identity_input(datatype: str) -> str:
    return f"INPUT_{datatype}"


async def test_classification_answers_the_same(pair: tuple[Client, Client]) -> None:
    await both(
        pair,
        lambda c: ("fraud", [c.tensor("features", FEATURES, "FP32")], "2", [c.output("probability", class_count=1)]),
    )


async def failure(client: Client, *arguments: Any, **options: Any) -> tuple[str | None, str]:
    with pytest.raises(InferenceServerException) as caught:
        await client.call("infer", *arguments, **options)
    return caught.value.status(), caught.value.message()


@pytest.mark.parametrize(
    "case", ["unknown model", "unknown version", "wrong dtype", "wrong shape", "no such output", "batch too large"]
)
async def test_faults_of_the_caller_have_the_same_status(pair: tuple[Client, Client], case: str) -> None:
    def make(c: Client) -> tuple[Any, ...]:
        good = [c.tensor("features", FEATURES, "FP32")]
        return {
            "unknown model": ("nosuch", good),
            "unknown version": ("fraud", good, "77"),
            "wrong dtype": ("fraud", [c.tensor("features", FEATURES.astype(np.int32), "INT32")]),
            "wrong shape": ("fraud", [c.tensor("features", FEATURES[:, :5].copy(), "FP32")]),
            "no such output": ("fraud", good, "", [c.output("nosuch")]),
            "batch too large": ("fraud", [c.tensor("features", np.zeros((5000, 12), dtype=np.float32), "FP32")]),
        }[case]

    direct, through = pair
    expected, actual = await failure(direct, *make(direct)), await failure(through, *make(through))
    assert actual[0] == expected[0], (actual, expected)
    assert actual[1]


async def test_health_and_readiness_agree(pair: tuple[Client, Client]) -> None:
    for client in pair:
        assert await client.call("is_server_live")
        assert await client.call("is_server_ready")
        assert await client.call("is_model_ready", "fraud")
        assert await client.call("is_model_ready", "fraud", "1")
        assert not await client.call("is_model_ready", "fraud", "77")
        assert not await client.call("is_model_ready", "nosuch")


async def test_metadata_and_configuration_are_tritons_own(pair: tuple[Client, Client]) -> None:
    direct, through = pair
    for name, arguments in (
        ("get_model_metadata", ("fraud",)),
        ("get_model_metadata", ("fraud", "1")),
        ("get_model_metadata", ("identity",)),
        ("get_model_config", ("fraud",)),
        ("get_model_config", ("accel", "1")),
    ):
        expected = await direct.call(name, *arguments)
        assert await through.call(name, *arguments) == expected, (name, arguments)
    theirs, ours = await direct.call("get_server_metadata"), await through.call("get_server_metadata")
    assert extensions(theirs) - extensions(ours) == REFUSED_EXTENSIONS
    assert extensions(ours) <= extensions(theirs)


def extensions(metadata: Any) -> set[str]:
    return set(metadata["extensions"] if isinstance(metadata, dict) else metadata.extensions)


async def test_metadata_of_unknown_models_fails_the_same(pair: tuple[Client, Client]) -> None:
    direct, through = pair
    for name in ("get_model_metadata", "get_model_config"):
        statuses = []
        for client in (direct, through):
            with pytest.raises(InferenceServerException) as caught:
                await client.call(name, "nosuch")
            statuses.append(caught.value.status())
        assert statuses[0] == statuses[1]
