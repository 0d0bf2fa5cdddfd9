"""What the demo's traffic consists of: for each model and each way to call it, one sender.

The clients are unmodified: tritonclient's over both protocols, and for `generate_stream`, which tritonclient does not
have, a plain HTTP client. Answers are looked at where only that shows that all is well: a stream must be whole, and a
sum must hold every step of its sequence, so all of them met one replica.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp
import numpy as np
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http

from gateway.cli.infer_story import parsed
from gateway.runtime.clock import Clock
from gateway.wire.sse import SseDecoder

HTTP, GRPC, GENERATE_STREAM, STREAM_INFER = "http", "grpc", "generate_stream", "ModelStreamInfer"
CALL, STREAM, SEQUENCE = "call", "stream", "sequence"

FEATURES = 12
ITEMS, TASTES = 20, 16
TOKENS = 8
TOKEN_DELAY_MS = 20.0
STEPS = (5, 7, -3)
PROMPTS = ("Beautiful is", "Errors should", "In the face of", "There should be one", "If the implementation")
CONNECTIONS_MAX = 64
PATIENCE_MS = 2000
"""The deadline that calls ask for. Without it each model's own default would hold, and a demo on a machine that stands
still for a quarter of a second would be judged by that. What models allow may still be less.
"""


@dataclass(frozen=True, slots=True)
class Answered:
    """One call that ended well: by which version, with how many responses, and when the first of them was there, in
    seconds of the clock.
    """

    version: str
    first_s: float
    responses: int = 1


Sender = Callable[[str], AsyncIterator[Answered]]
"""Makes one call, or the calls of one sequence, whose request ids begin with the word; raises what goes wrong."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One row of the traffic. `over` is the protocol, or the method for a stream; `kind` what one turn is."""

    model: str
    over: str
    kind: str
    send: Sender


class Broken(Exception):
    """An answer that came, and is not what it must be."""


@dataclass(slots=True)
class Clients:
    """Connections to the gateway; used as `async with`."""

    http_address: str
    grpc_address: str
    clock: Clock
    chance: random.Random
    http: Any = field(init=False)
    grpc: Any = field(init=False)
    plain: aiohttp.ClientSession = field(init=False)

    async def __aenter__(self) -> Clients:
        self.http = triton_http.InferenceServerClient(self.http_address, conn_limit=CONNECTIONS_MAX)
        self.grpc = triton_grpc.InferenceServerClient(self.grpc_address)
        self.plain = aiohttp.ClientSession(f"http://{self.http_address}")
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.http.close()
        await self.grpc.close()
        await self.plain.close()

    def plans(self) -> list[Plan]:
        """All rows, in the order in which they take turns."""
        rows = []
        for model, inputs in _inputs(self.chance).items():
            rows.append(Plan(model, HTTP, CALL, self._unary(self.http, triton_http, model, inputs)))
            rows.append(Plan(model, GRPC, CALL, self._unary(self.grpc, triton_grpc, model, inputs)))
        rows.append(Plan("streamer", GENERATE_STREAM, STREAM, self._generate_stream))
        rows.append(Plan("streamer", STREAM_INFER, STREAM, self._stream_infer))
        numbers = count(int(self.clock.wall_s() * 1000))
        rows.append(Plan("accumulator", HTTP, SEQUENCE, self._sequence(self.http, triton_http, numbers)))
        rows.append(Plan("accumulator", GRPC, SEQUENCE, self._sequence(self.grpc, triton_grpc, numbers)))
        rows.append(Plan("accumulator-text", STREAM_INFER, SEQUENCE, self._sequence_on_one_stream))
        return rows

    def _unary(self, client: Any, module: Any, model: str, inputs: Callable[[Any], list[Any]]) -> Sender:
        async def send(request_id: str) -> AsyncIterator[Answered]:
            result = await client.infer(model, inputs(module), **_patient(client), headers=_headers(client, request_id))
            yield Answered(_version(result), self.clock.now_s())

        return send

    async def _generate_stream(self, request_id: str) -> AsyncIterator[Answered]:
        body = {"text_input": self.chance.choice(PROMPTS), "max_tokens": TOKENS, "delay_ms": TOKEN_DELAY_MS}
        headers = {"x-request-id": request_id}
        path = "/v2/models/streamer/generate_stream"
        events, responses, version, first_s = SseDecoder(), 0, "", 0.0
        async with self.plain.post(path, json=body, headers=headers) as answer:
            if answer.status != 200:
                raise Broken(f"HTTP {answer.status}: {(await answer.text())[:200]}")
            async for data in answer.content.iter_any():
                for event in events.feed(data):
                    response = parsed(event.data)
                    if "error" in response:
                        raise Broken(str(response["error"]))
                    responses, version = responses + 1, str(response["model_version"])
                    first_s = first_s or self.clock.now_s()
        yield _whole(version, first_s, responses)

    async def _stream_infer(self, request_id: str) -> AsyncIterator[Answered]:
        prompt = np.array([self.chance.choice(PROMPTS).encode()], dtype=np.object_)
        inputs = [
            tensor(triton_grpc, "text_input", prompt, "BYTES"),
            tensor(triton_grpc, "max_tokens", np.array([TOKENS], dtype=np.int32), "INT32"),
            tensor(triton_grpc, "delay_ms", np.array([TOKEN_DELAY_MS], dtype=np.float32), "FP32"),
        ]
        responses, version, first_s = 0, "", 0.0
        async for result in self._on_one_stream(request_id, [{"model_name": "streamer", "inputs": inputs}]):
            responses, version, first_s = responses + 1, _version(result), first_s or self.clock.now_s()
        yield _whole(version, first_s, responses)

    def _sequence(self, client: Any, module: Any, numbers: Any) -> Sender:
        async def send(request_id: str) -> AsyncIterator[Answered]:
            number, total = next(numbers), 0
            for step, value in enumerate(STEPS):
                result = await client.infer(
                    "accumulator", [_value(module, value)],
                    sequence_id=number, sequence_start=step == 0, sequence_end=step == len(STEPS) - 1,
                    **_patient(client), headers=_headers(client, f"{request_id}.{step}"),
                )  # fmt: skip
                total += value
                yield self._summed(result, total)

        return send

    async def _sequence_on_one_stream(self, request_id: str) -> AsyncIterator[Answered]:
        requests = [
            {
                "model_name": "accumulator-text", "inputs": [_value(triton_grpc, value)], "sequence_id": request_id,
                "sequence_start": step == 0, "sequence_end": step == len(STEPS) - 1,
            }
            for step, value in enumerate(STEPS)
        ]  # fmt: skip
        total = step = 0
        async for result in self._on_one_stream(request_id, requests):
            total, step = total + STEPS[step], step + 1
            yield self._summed(result, total)
        if step != len(STEPS):
            raise Broken(f"{step} answers came for the {len(STEPS)} steps of a sequence")

    async def _on_one_stream(self, request_id: str, requests: list[dict[str, Any]]) -> AsyncIterator[Any]:
        async def each() -> AsyncIterator[dict[str, Any]]:
            for request in requests:
                yield request

        async for result, error in self.grpc.stream_infer(each(), headers={"x-request-id": request_id}):
            if error is not None:
                raise error
            yield result

    def _summed(self, result: Any, wanted: int) -> Answered:
        got = int(result.as_numpy("sum").reshape(-1)[0])
        if got != wanted:
            raise Broken(f"the sum of a sequence is {got}; its steps make {wanted}")
        return Answered(_version(result), self.clock.now_s())


def _patient(client: Any) -> dict[str, Any]:
    """Over gRPC a deadline is the protocol's own."""
    return {"client_timeout": PATIENCE_MS / 1000} if isinstance(client, triton_grpc.InferenceServerClient) else {}


def _headers(client: Any, request_id: str) -> dict[str, str]:
    """Over HTTP it is a header."""
    if isinstance(client, triton_grpc.InferenceServerClient):
        return {"x-request-id": request_id}
    return {"x-request-id": request_id, "x-request-timeout-ms": str(PATIENCE_MS)}


def _inputs(chance: random.Random) -> dict[str, Callable[[Any], list[Any]]]:
    """Model to what makes the inputs of a call, given the client's module."""
    generator = np.random.default_rng(chance.randrange(2**32))

    def numbers(*shape: int) -> Any:
        return generator.random(shape, dtype=np.float32)

    def features(module: Any) -> list[Any]:
        return [tensor(module, "features", numbers(1, FEATURES), "FP32")]

    def work(module: Any) -> list[Any]:
        return [tensor(module, "work", np.array([[1.0]], dtype=np.float32), "FP32")]

    def anything(module: Any) -> list[Any]:
        return [tensor(module, "INPUT_FP32", numbers(100), "FP32")]

    def items(module: Any) -> list[Any]:
        user, liked = numbers(TASTES), numbers(ITEMS, TASTES)
        return [tensor(module, "user", user, "FP32"), tensor(module, "items", liked, "FP32")]

    def text(module: Any) -> list[Any]:
        words = np.array([[chance.choice(PROMPTS).encode()]], dtype=np.object_)
        return [tensor(module, "text", words, "BYTES")]

    def around_zero(module: Any) -> list[Any]:
        return [tensor(module, "x", numbers(1, 4) - np.float32(0.5), "FP32")]

    return {
        "fraud": features,
        "fraud-lite": features,
        "accel": work,
        "identity": anything,
        "ranker": items,
        "embedder": text,
        "mixed": around_zero,
    }


def tensor(module: Any, name: str, values: Any, datatype: str) -> Any:
    """An input of tritonclient's, of either protocol."""
    made = module.InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values)
    return made


def _value(module: Any, value: int) -> Any:
    return tensor(module, "value", np.array([[value]], dtype=np.int64), "INT64")


def _version(result: Any) -> str:
    response = result.get_response()
    return str(response["model_version"] if isinstance(response, dict) else response.model_version)


def _whole(version: str, first_s: float, responses: int) -> Answered:
    if responses != TOKENS:
        raise Broken(f"a stream of {TOKENS} responses ended after {responses}")
    return Answered(version, first_s, responses)
