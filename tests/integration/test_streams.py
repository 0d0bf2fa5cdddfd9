"""ModelStreamInfer through the gateway, with unmodified clients, beside the same stream sent to Triton directly."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from deploy.local import LocalFleet
from tests.conftest import STREAMING_POLICIES, mend, replicas_of
from tests.support.gateway_process import GatewayProcess, write_policies

WAIT_S = 20.0
DIRECT_WAIT_S = 6.0
PLAYS = 4
"""A plain and a decoupled call that overlap on one stream of Triton 2.51 race in it: asked directly on a busy machine,
about one pair in a hundred is never answered or kills the server (2,300 pairs through the gateway met neither: it sends
a plain call by itself). Such a play says nothing of the gateway."""
KINDS: dict[str, tuple[str, Any]] = {
    "text_input": ("BYTES", np.object_),
    "fail_with": ("BYTES", np.object_),
    "final": ("BYTES", np.object_),
    "max_tokens": ("INT32", np.int32),
    "fail_at": ("INT32", np.int32),
    "delay_ms": ("FP32", np.float32),
    "first_delay_ms": ("FP32", np.float32),
}
Message = tuple[Any, ...]


def tensor(name: str, values: Any, datatype: str, kind: Any, module: Any = triton_grpc) -> Any:
    array: np.ndarray[Any, Any] = np.asarray(values, dtype=kind)
    made = module.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def tokens(text: bytes = b"hello", **options: Any) -> list[Any]:
    """The inputs of `streamer`."""
    given: dict[str, Any] = {"text_input": text, **options}
    return [
        tensor(name, [value.encode() if isinstance(value, str) else value], *KINDS[name])
        for name, value in given.items()
    ]


class Stream:
    """One stream of one unmodified client. A message is what a caller can see of a response."""

    def __init__(self, address: str, *, wait_s: float = WAIT_S, **options: Any) -> None:
        self._wait_s = wait_s
        self.client = triton_grpc.InferenceServerClient(address)
        self._messages: Queue[Message] = Queue()
        self.unfinished = False
        """Something is out whose end nobody waits for. Triton 2.51 may crash over cancellations: only where need be."""
        self.client.start_stream(self._take, **options)

    def _take(self, result: Any, error: Any) -> None:
        if error is not None:
            self._messages.put(("error", error.status(), error.message()))
            return
        response = result.get_response()
        outputs = {output.name: result.as_numpy(output.name).tolist() for output in response.outputs}
        final = response.parameters["triton_final_response"].bool_param
        self._messages.put((response.id, response.model_name, final, outputs))

    def send(self, model: str, inputs: list[Any], **options: Any) -> None:
        self.client.async_stream_infer(model, inputs, **options)

    def take(self, count: int) -> list[Message]:
        return [self._messages.get(timeout=self._wait_s) for _ in range(count)]

    def nothing_more(self) -> bool:
        return self._messages.empty()

    def close(self, *, cancel: bool = False) -> None:
        self.client.stop_stream(cancel_requests=cancel)
        self.client.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        self.close(cancel=self.unfinished or kind is not None)


def both(
    fleet: LocalFleet, gateway: GatewayProcess, script: Callable[[Stream], list[Message]], **options: Any
) -> list[Message]:
    """What the script sees of Triton, after it has seen the same through the gateway."""
    server = fleet["triton-0"]
    through = seen_of(gateway.grpc, "the gateway", WAIT_S, script, options)
    for _ in range(PLAYS):
        try:
            direct = seen_of(server.spec.grpc_address, "Triton", DIRECT_WAIT_S, script, options)
        except (SilentError, InferenceServerException) as error:
            print(f"played again: {error}")
        else:
            if through == direct or server.state() == "running":
                break
        mend(fleet)
    else:
        raise AssertionError(f"Triton gave no whole answer in {PLAYS} plays")
    assert through == direct
    return direct


class SilentError(AssertionError):
    """A side that owes a response and sends none."""


def seen_of(
    address: str, name: str, wait_s: float, script: Callable[[Stream], list[Message]], options: dict[str, Any]
) -> list[Message]:
    """What the script sees of one side."""
    with Stream(address, wait_s=wait_s, **options) as stream:
        try:
            return script(stream)
        except Empty:
            raise SilentError(f"{name} was silent for {wait_s:g} s") from None


@pytest.fixture(autouse=True)
def _healthy(streaming_fleet: LocalFleet) -> None:
    """A server that crashed in one test must not fail those behind it."""
    mend(streaming_fleet)


# --- the same as Triton ---


@pytest.mark.parametrize("tell_end", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_a_decoupled_model_gives_none_one_or_many(
    streaming_fleet: LocalFleet, streaming_gateway: GatewayProcess, count: int, tell_end: bool
) -> None:
    def script(stream: Stream) -> list[Message]:
        stream.send("streamer", tokens(max_tokens=count), request_id="a", enable_empty_final_response=tell_end)
        # Another call behind it shows where the first one ended.
        if not tell_end:
            time.sleep(0.2)
        stream.send("identity", [tensor("INPUT_INT32", [7], "INT32", np.int32)], request_id="last")
        expected = count + tell_end + 1
        return sorted(stream.take(expected), key=lambda message: message[0] == "last")

    found = both(streaming_fleet, streaming_gateway, script)
    assert [message[0] for message in found] == ["a"] * (count + tell_end) + ["last"]


@pytest.mark.parametrize(
    "text", ['echo:":\n\n"', "echo:data: x\n\nevent: y", "echo:\r\n", "chars:é😀ü", "echo:" + "a" * 200_000]
)
def test_texts_arrive_byte_for_byte(streaming_fleet: LocalFleet, streaming_gateway: GatewayProcess, text: str) -> None:
    def script(stream: Stream) -> list[Message]:
        stream.send("streamer", tokens(text.encode()), request_id="a", enable_empty_final_response=True)
        found: list[Message] = []
        while not found or not found[-1][2]:
            found += stream.take(1)
        return found

    found = both(streaming_fleet, streaming_gateway, script)
    joined = b"".join(message[3]["text_output"][0] for message in found if message[3])
    assert joined == text.partition(":")[2].encode()


def test_errors_stand_in_the_stream_with_their_request_and_it_lives_on(
    streaming_fleet: LocalFleet, streaming_gateway: GatewayProcess
) -> None:
    def script(stream: Stream) -> list[Message]:
        found = []
        stream.send("nobody-knows-me", tokens(), request_id="a")
        found += stream.take(1)
        stream.send("streamer", [tensor("text", [b"x"], "BYTES", np.object_)], request_id="b")
        found += stream.take(1)
        stream.send("streamer", tokens(max_tokens=3, fail_at=0), request_id="c")
        found += stream.take(1)
        stream.send("streamer", tokens(max_tokens=3, fail_at=1), request_id="d")
        found += stream.take(2)
        stream.send("streamer", tokens(max_tokens=1), request_id="e", enable_empty_final_response=True)
        return found + stream.take(2)

    found = both(streaming_fleet, streaming_gateway, script)
    assert [message[0] for message in found] == ["error", "error", "error", "d", "error", "e", "e"]


def test_an_error_and_its_end_told_apart(streaming_fleet: LocalFleet, streaming_gateway: GatewayProcess) -> None:
    def script(stream: Stream) -> list[Message]:
        inputs = tokens(max_tokens=3, fail_at=1, final="apart")
        stream.send("streamer", inputs, request_id="a", enable_empty_final_response=True)
        return stream.take(3)

    found = both(streaming_fleet, streaming_gateway, script)
    assert [message[0] for message in found] == ["a", "error", "a"]
    assert found[-1][2]


def test_models_that_are_not_decoupled_answer_in_the_order_of_their_requests(
    streaming_fleet: LocalFleet, streaming_gateway: GatewayProcess
) -> None:
    def script(stream: Stream) -> list[Message]:
        for number, straggle_ms in enumerate((300, 0, 150, 0, 0)):
            inputs = [tensor("work", [[1.0]], "FP32", np.float32)]
            stream.send("accel", inputs, request_id=str(number), parameters={"straggle_ms": straggle_ms})
        return [message[:3] for message in stream.take(5)]  # the output says when it ran

    found = both(streaming_fleet, streaming_gateway, script)
    assert [message[0] for message in found] == ["0", "1", "2", "3", "4"]
    assert all(message[2] for message in found)


def test_several_models_share_a_stream(streaming_fleet: LocalFleet, streaming_gateway: GatewayProcess) -> None:
    def script(stream: Stream) -> list[Message]:
        stream.send("streamer", tokens(max_tokens=3, delay_ms=20), request_id="s", enable_empty_final_response=True)
        stream.send("identity", [tensor("INPUT_FP64", [1.5], "FP64", np.float64)], request_id="a")
        stream.send("identity", [tensor("INPUT_INT32", [7, 8], "INT32", np.int32)], request_id="i")
        return sorted(stream.take(6), key=lambda message: str(message[0]))

    both(streaming_fleet, streaming_gateway, script)


def test_half_close_lets_what_is_out_finish(streaming_fleet: LocalFleet, streaming_gateway: GatewayProcess) -> None:
    def script(stream: Stream) -> list[Message]:
        stream.send("streamer", tokens(max_tokens=5, delay_ms=30), request_id="a", enable_empty_final_response=True)
        stream.client.stop_stream()
        return stream.take(6)

    assert len(both(streaming_fleet, streaming_gateway, script)) == 6


def test_without_ids_each_call_still_gets_its_own(
    streaming_fleet: LocalFleet, streaming_gateway: GatewayProcess
) -> None:
    def script(stream: Stream) -> list[Message]:
        for letter in "abc":
            stream.send("streamer", tokens(f"chars:{letter * 3}".encode()), enable_empty_final_response=True)
        return sorted(stream.take(12), key=str)

    both(streaming_fleet, streaming_gateway, script)


def test_the_aio_client_streams_too(streaming_fleet: LocalFleet, streaming_gateway: GatewayProcess) -> None:
    async def read(address: str) -> list[Any]:
        async def requests() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": "streamer", "inputs": tokens(max_tokens=4), "request_id": "a"}

        found = []
        async with asyncio.timeout(WAIT_S), triton_aio.InferenceServerClient(address) as client:
            async for result, error in client.stream_infer(requests()):
                assert error is None
                found.append((result.get_response().id, result.as_numpy("text_output").tolist()))
        return found

    direct = asyncio.run(read(streaming_fleet["triton-0"].spec.grpc_address))
    assert asyncio.run(read(streaming_gateway.grpc)) == direct
    assert len(direct) == 4


@pytest.mark.parametrize("kind", [int, str])
def test_a_sequence_over_a_stream_adds_up(
    streaming_fleet: LocalFleet, streaming_gateway: GatewayProcess, kind: type
) -> None:
    name = kind(time.monotonic_ns())

    def script(stream: Stream) -> list[Message]:
        for number in range(5):
            stream.send(
                "accumulator",
                [tensor("value", [[number]], "INT64", np.int64)],
                request_id=str(number),
                sequence_id=name,
                sequence_start=number == 0,
                sequence_end=number == 4,
            )
        return stream.take(5)

    found = both(streaming_fleet, streaming_gateway, script)
    assert [message[3]["sum"] for message in found] == [[[0]], [[1]], [[3]], [[6]], [[10]]]


@pytest.mark.parametrize("count", [120, 300])
def test_a_long_sequence_sent_ahead_on_one_stream_has_no_holes(streaming_gateway: GatewayProcess, count: int) -> None:
    """More steps than may be out at a time: the stream is read no further, and not one step is refused."""
    name = time.monotonic_ns()
    with Stream(streaming_gateway.grpc) as stream:
        for number in range(count):
            stream.send(
                "accumulator",
                [tensor("value", [[1]], "INT64", np.int64)],
                request_id=str(number),
                sequence_id=name,
                sequence_start=number == 0,
                sequence_end=number == count - 1,
            )
        found = stream.take(count)
    assert [message[0] for message in found] == [str(number) for number in range(count)]
    assert [message[3]["sum"] for message in found] == [[[number + 1]] for number in range(count)]


# --- what only the gateway does ---


def test_every_message_has_its_record(streaming_gateway: GatewayProcess) -> None:
    name = f"records-{time.monotonic_ns()}"
    with Stream(streaming_gateway.grpc, headers={"x-request-id": name}) as stream:
        stream.send("streamer", tokens(max_tokens=3), request_id="a", enable_empty_final_response=True)
        stream.take(4)
        stream.send("streamer", tokens(max_tokens=3, fail_at=1), request_id="b")
        stream.take(2)
        stream.send("nobody-knows-me", tokens(), request_id="c")
        stream.take(1)
    end_s = time.monotonic() + WAIT_S
    while True:
        mine = [record for record in streaming_gateway.records() if record["request_id"] == name]
        if len(mine) >= 3 or time.monotonic() > end_s:
            break
        time.sleep(0.05)
    mine.sort(key=lambda record: record["stream_message"])
    assert [(each["body_id"], each["stream_message"], each["responses"], each["outcome"]) for each in mine] == [
        ("a", 1, 4, "ok"),
        ("b", 2, 2, "broken"),
        ("c", 3, 0, "caller_fault"),
    ]
    assert [each["version"] for each in mine] == ["1", "1", ""]


def test_a_client_that_cancels_stops_the_model(streaming_fleet: LocalFleet, streaming_gateway: GatewayProcess) -> None:
    name = f"cancelled-{time.monotonic_ns()}"
    with Stream(streaming_gateway.grpc) as stream:
        stream.unfinished = True
        stream.send("streamer", tokens(max_tokens=1000, delay_ms=20), request_id=name)
        stream.take(2)
    ends = wait_for(lambda: [line for line in log_of(streaming_fleet, name) if line["event"] == "end"])
    assert ends[0]["outcome"] == "cancelled"


def log_of(fleet: LocalFleet, request_id: str) -> list[dict[str, Any]]:
    found = []
    for server in fleet:
        log: Path = server.spec.stream_log
        lines = log.read_text().splitlines() if log.exists() else []
        entries = [json.loads(line) for line in lines if line.endswith("}")]  # the last may be half written
        found += [entry for entry in entries if entry["id"] == request_id]
    return found


def wait_for(read: Callable[[], list[Any]]) -> list[Any]:
    end_s = time.monotonic() + WAIT_S
    while not (found := read()):
        assert time.monotonic() < end_s, "it never happened"
        time.sleep(0.02)
    return found


def test_the_deadline_of_the_stream_ends_its_calls_on_the_replica(
    streaming_fleet: LocalFleet, streaming_gateway: GatewayProcess
) -> None:
    for timeout_s in (1.0, 5.0, 15.0):
        name = f"expired-{time.monotonic_ns()}"
        with Stream(streaming_gateway.grpc, stream_timeout=timeout_s) as stream:
            stream.send("streamer", tokens(max_tokens=1000, delay_ms=20), request_id=name)
            messages = [stream.take(1)[0]]
            while messages[-1][0] != "error":
                messages += stream.take(1)
        assert messages[-1][1] in ("StatusCode.DEADLINE_EXCEEDED", None)
        if len(messages) > 1:
            break
        # On a busy machine the deadline may pass before the model has begun, which leaves nothing to end.
    ends = wait_for(lambda: [line for line in log_of(streaming_fleet, name) if line["event"] == "end"])
    assert ends[0]["outcome"] == "cancelled"


def test_a_model_s_error_ends_the_stream_where_the_caller_wants_true_statuses(
    streaming_gateway: GatewayProcess,
) -> None:
    with Stream(streaming_gateway.grpc, headers={"triton_grpc_error": "true"}) as stream:
        stream.send("streamer", tokens(max_tokens=3, fail_at=1, final="apart"), request_id="a")
        first, second = stream.take(2)
    assert first[0] == "a"
    assert second[:2] == ("error", "StatusCode.INTERNAL")
    status, _ = streaming_gateway.get("http", "/v2/models/streamer/ready")
    assert status == 200


def test_bytes_that_are_no_message_end_the_stream_with_a_status(streaming_gateway: GatewayProcess) -> None:
    with grpc.insecure_channel(streaming_gateway.grpc) as channel:
        method = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        with pytest.raises(grpc.RpcError) as raised:
            list(method(iter([b"\xff\xff\xff"]), timeout=WAIT_S))
    assert raised.value.code() is grpc.StatusCode.INTERNAL


def test_a_replica_that_dies_fails_its_calls_in_place_and_the_next_goes_to_another(
    breakable_streaming_fleet: LocalFleet, tmp_path: Path
) -> None:
    fleet = breakable_streaming_fleet
    listen = write_policies(tmp_path, replicas_of(fleet), models=STREAMING_POLICIES)
    with GatewayProcess(tmp_path, listen) as gateway:
        gateway.wait_ready().wait_models("streamer")
        wait_for(lambda: _warmed_everywhere(gateway))
        with Stream(gateway.grpc) as stream:
            stream.send("streamer", tokens(max_tokens=1000, delay_ms=50), request_id="doomed")
            stream.take(2)
            running = next(server for server in fleet if '"doomed"' in server.spec.stream_log.read_text())
            running.kill()
            last: Message = ()
            while not last or last[0] != "error":
                last = stream.take(1)[0]
            assert "model server" in last[2]
            # Until the next probe, a moment later, the dead one may still be chosen.
            wait_for(lambda: [True for replica in _replicas(gateway) if replica["state"] != "live"])
            stream.send("streamer", tokens(max_tokens=2), request_id="next", enable_empty_final_response=True)
            assert [message[0] for message in stream.take(3)] == ["next"] * 3
        records = wait_for(lambda: [each for each in gateway.records() if each["body_id"] == "doomed"])
        assert (records[0]["outcome"], records[0]["reason"]) == ("transport", "upstream_lost")
        assert gateway.stop() == 0


def _replicas(gateway: GatewayProcess) -> list[dict[str, Any]]:
    token = (gateway.directory / "state" / "admin-token").read_text().strip()
    status, body = gateway.get("admin", "/v1/fleet", {"authorization": f"Bearer {token}"})
    assert status == 200
    replicas: list[dict[str, Any]] = json.loads(body)["pools"]["cpu"]["replicas"]
    return replicas


def _warmed_everywhere(gateway: GatewayProcess) -> list[bool]:
    wanted = {"model": "streamer", "state": "warmed"}
    warm = [any(wanted.items() <= model.items() for model in replica["models"]) for replica in _replicas(gateway)]
    return warm if all(warm) and len(warm) == 2 else []


def test_a_draining_gateway_finishes_what_is_out_and_ends_the_stream(
    streaming_fleet: LocalFleet, tmp_path: Path
) -> None:
    listen = write_policies(tmp_path, replicas_of(streaming_fleet), models=STREAMING_POLICIES)
    with GatewayProcess(tmp_path, listen) as gateway:
        gateway.wait_ready().wait_models("streamer")
        with Stream(gateway.grpc) as stream:
            stream.send(
                "streamer", tokens(max_tokens=20, delay_ms=50), request_id="a", enable_empty_final_response=True
            )
            first = stream.take(1)
            assert gateway.stop() == 0
            rest = stream.take(20)
            assert [message[0] for message in first + rest] == ["a"] * 21
            assert rest[-1][2]
            assert stream.take(1)[0][:2] == ("error", "StatusCode.UNAVAILABLE")


def test_a_unary_call_to_a_decoupled_model_says_what_triton_says(
    streaming_fleet: LocalFleet, streaming_gateway: GatewayProcess
) -> None:
    told = []
    for address in (streaming_fleet["triton-0"].spec.grpc_address, streaming_gateway.grpc):
        with triton_grpc.InferenceServerClient(address) as client, pytest.raises(InferenceServerException) as raised:
            client.infer("streamer", tokens())
        told.append((raised.value.status(), raised.value.message()))
    assert told[0] == told[1]


def test_fifty_streams_at_once(streaming_gateway: GatewayProcess) -> None:
    async def one(stub: Any, number: int) -> list[bytes]:
        def request() -> Any:
            message = service_pb2.ModelInferRequest(model_name="streamer", id=str(number))
            text = f"chars:{number}-".encode() + b"x" * 20
            message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
            message.raw_input_contents.append(len(text).to_bytes(4, "little") + text)
            message.parameters["triton_enable_empty_final_response"].bool_param = True
            return message

        found: list[bytes] = []
        call = stub.ModelStreamInfer(iter([request()]))
        async for response in call:
            assert not response.error_message
            inner = response.infer_response
            assert inner.id == str(number)
            if inner.raw_output_contents:
                found.append(inner.raw_output_contents[0][4:])
        return found

    async def run() -> list[list[bytes]]:
        async with asyncio.timeout(60), grpc.aio.insecure_channel(streaming_gateway.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            return await asyncio.gather(*(one(stub, number) for number in range(50)))

    for number, found in enumerate(asyncio.run(run())):
        assert b"".join(found) == f"{number}-".encode() + b"x" * 20
