"""The four unmodified tritonclients and every model of the suite: what users can ask for, and what they see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import numpy as np
import pytest
from ml_dtypes import bfloat16
from tritonclient.utils import InferenceServerException

from tests.integration.test_differential import DTYPES, FLAVOURS, Client, plain
from tests.support.differential import LOST_S, PLAYS, Differential

RNG = np.random.default_rng(11)
USER = RNG.standard_normal(16, dtype=np.float32)
ITEMS = RNG.standard_normal((5, 16), dtype=np.float32)
X = np.array([[1.0, -1.0, 0.0], [65536.0, np.nan, np.inf]], dtype=np.float32)
TEXT = np.array([["two words"], ["über ☃"], [""]], dtype=object)
Make = Callable[[Client], dict[str, Any]]


class Both:
    """One flavour, directly and through the gateway."""

    def __init__(self, pair: Differential, direct: Client, through: Client) -> None:
        self.pair, self.direct, self.through = pair, direct, through
        self.http = "http" in direct.flavour

    async def see(self, client: Client, make: Make) -> Any:
        options = make(client)
        try:
            result = await client.call("infer", options.pop("model"), options.pop("inputs"), **options)
        except InferenceServerException as error:
            return "error", error.status(), bool(error.message())
        except aiohttp.ClientError as error:
            return "error", "lost", type(error).__name__
        response = plain(result.get_response())
        found = [(name, result.as_numpy(name)) for name, _, _ in response["outputs"]]
        return response, [(name, str(array.dtype), array.shape, _bits(array)) for name, array in found]

    async def check(self, make: Make, *, good: bool = True) -> None:
        for _ in range(PLAYS):
            expected, actual = await self.see(self.direct, make), await self.see(self.through, make)
            if not self.pair.died(0.0 if good is (expected[0] != "error") else LOST_S):
                break
        assert actual == expected
        assert (expected[0] != "error") is good, expected
        self.pair.comparisons += 1


def _bits(array: Any) -> Any:
    return array.tolist() if array.dtype == np.object_ else array.tobytes()


@pytest.fixture(params=FLAVOURS)
async def both(request: pytest.FixtureRequest, differential: Differential) -> AsyncIterator[Both]:
    flavour = request.param
    sides: Any = differential.http if "http" in flavour else differential.grpc
    direct, through = (Client(flavour, side.address) for side in sides)
    yield Both(differential, direct, through)
    await direct.close()
    await through.close()


def model(name: str, *inputs: tuple[str, Any, str], **options: Any) -> Make:
    binary = options.pop("binary", True)
    outputs = options.pop("outputs", ())

    def make(client: Client) -> dict[str, Any]:
        made = {"model": name, "inputs": [client.tensor(*each, binary=binary) for each in inputs], **options}
        if outputs:
            made["outputs"] = [client.output(each, **wanted) for each, wanted in outputs]
        return made

    return make


RANKER = (("user", USER, "FP32"), ("items", ITEMS, "FP32"))


async def test_several_outputs_in_every_form(both: Both) -> None:
    await both.check(model("mixed", ("x", X, "FP32")))
    for names in (("y",), ("h", "z"), ("z", "y", "h"), ("y", "y")):
        await both.check(model("mixed", ("x", X, "FP32"), outputs=[(name, {}) for name in names]))
    wanted = [("y", {"binary": False}), ("z", {"binary": True}), ("h", {"binary": True})]
    await both.check(model("mixed", ("x", X, "FP32"), outputs=wanted, binary=False))
    await both.check(model("mixed", ("x", X, "FP32"), outputs=[("nosuch", {})]), good=False)
    await both.check(model("mixed", ("x", X, "FP32"), outputs=[("h", {"binary": False})]), good=not both.http)


async def test_classification_with_and_without_labels(both: Both) -> None:
    for k in (1, 3, 4, 5, 100):
        for name in ("scores", "order", "factors"):
            await both.check(model("ranker", *RANKER, outputs=[(name, {"class_count": k})]))
        await both.check(model("mixed", ("x", X[:, :1].copy(), "FP32"), outputs=[("y", {"class_count": k})]))
    await both.check(model("mixed", ("x", X, "FP32"), outputs=[("h", {"class_count": 1})]), good=False)


async def test_variable_shapes(both: Both) -> None:
    for count in (1, 2, 100):
        items = RNG.standard_normal((count, 16), dtype=np.float32)
        await both.check(model("ranker", ("user", USER, "FP32"), ("items", items, "FP32")))
    await both.check(model("ranker", ("user", USER, "FP32"), ("items", ITEMS[:, :15].copy(), "FP32")), good=False)
    await both.check(model("ranker", ("user", USER, "FP32")), good=False)


async def test_text_goes_in_and_vectors_come_out(both: Both) -> None:
    for binary in (True, False):
        await both.check(model("embedder", ("text", TEXT, "BYTES"), binary=binary))
    await both.check(model("embedder", ("text", np.array([[b"\xff"]], dtype=object), "BYTES")), good=False)
    await both.check(model("embedder", ("text", np.full((33, 1), "x", dtype=object), "BYTES")), good=False)


async def test_every_datatype_at_once(both: Both) -> None:
    inputs = [(f"INPUT_{datatype}", values, datatype) for datatype, values in DTYPES.items()]
    inputs.append(("INPUT_BF16", np.array([1.0, -0.0, np.inf, 3.0e38], dtype=bfloat16), "BF16"))
    await both.check(model("identity", *inputs, request_id="all"))
    for shape in ((0, 0), (0, 5), (2, 0)):
        empty = np.zeros(shape, dtype=np.int64)
        await both.check(model("identity", ("INPUT_MATRIX_INT64", empty, "INT64")), good=True)


async def test_bytes_that_are_not_text(both: Both) -> None:
    values = np.array([b"\x00\xff", b"", b"a\x00b"], dtype=object)
    await both.check(model("identity", ("INPUT_BYTES", values, "BYTES")))
    matrix = np.array([[b"\xfe", b"x"]], dtype=object)
    await both.check(model("identity", ("INPUT_MATRIX_BYTES", matrix, "BYTES")))


async def test_ids_priorities_timeouts_and_parameters(both: Both) -> None:
    one = ("INPUT_INT32", np.array([7], dtype=np.int32), "INT32")
    for options in (
        {"request_id": "é☃"}, {"request_id": "x" * 1000}, {"priority": 1}, {"priority": 2**40}, {"timeout": 5_000_000},
        {"parameters": {"a": 1, "b": "x", "c": True, "d": 1.5}}, {"sequence_id": 5, "sequence_start": True,
        "sequence_end": True},
        {"sequence_id": "five", "sequence_start": True}, {"model_version": "1"},
    ):  # fmt: skip
        await both.check(model("identity", one, **options))
    await both.check(model("identity", one, model_version="9"), good=False)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_compression(both: Both, coding: str) -> None:
    values = np.arange(20_000, dtype=np.int32)
    options: dict[str, Any] = {"compression_algorithm": coding}
    if both.http:
        options = {"request_compression_algorithm": coding, "response_compression_algorithm": coding}
    await both.check(model("identity", ("INPUT_INT32", values, "INT32"), **options))


async def test_large_tensors(both: Both) -> None:
    values = RNG.standard_normal(1 << 20, dtype=np.float32)
    await both.check(model("identity", ("INPUT_FP32", values, "FP32")))
    few = RNG.standard_normal(20_000, dtype=np.float32)
    await both.check(model("identity", ("INPUT_FP32", few, "FP32"), binary=False))
