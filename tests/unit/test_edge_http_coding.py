"""Compressed bodies at the HTTP edge: requests under hard bounds, answers that say truly what they are."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import random
import struct
import zlib
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse

from gateway.core.call import Call
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.edge.http_call import HttpCall
from gateway.edge.http_coding import DEFLATE_SLICE_BYTES, INLINE_DEFLATE_BYTES
from gateway.edge.inflating import INFLATE_SLICE_BYTES, INLINE_INFLATE_BYTES, InflatingBody
from gateway.policy.schema import HttpLimits
from gateway.runtime.workers import ThreadWorkers
from tests.support.clock import ManualClock
from tests.support.http_answer import Answer
from tests.unit.edge_clients import WAIT_S, Client, infer_body, infer_response, post, read_answers
from tests.unit.edge_driving import MIB, Edge, GatedService, ReceivingService, running, turns

T = TypeVar("T")


class HandWorkers:
    """Workers whose work is done when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], object], asyncio.Future[object]]] = []
        self.done = 0

    async def run(self, work: Callable[[], T]) -> T:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.waiting.append((work, future))
        return await future  # type: ignore[return-value]

    async def work(self) -> None:
        work, future = self.waiting.pop(0)
        result = work()
        self.done += 1
        if not future.done():
            future.set_result(result)
        await turns()

    async def aclose(self, limit_s: float) -> bool:
        return True


def work_by_hand(edge: Edge) -> HandWorkers:
    """Give the edge such workers."""
    workers = edge.server.kit.coding.workers = HandWorkers()
    return workers


@pytest.fixture
async def threads() -> AsyncIterator[ThreadWorkers]:
    workers = ThreadWorkers(2, "test-coding")
    yield workers
    assert await workers.aclose(WAIT_S)


def binary_body(values: bytes) -> tuple[bytes, int]:
    """A request with one binary FP32 tensor, and the length of its JSON."""
    document = {
        "inputs": [
            {
                "name": "x",
                "datatype": "FP32",
                "shape": [1, len(values) // 4],
                "parameters": {"binary_data_size": len(values)},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    head = json.dumps(document, indent=8).encode()
    return head + values, len(head)


async def talk(address: tuple[str, int], *requests: bytes) -> list[Answer]:
    """All requests at once over one connection; one answer to each."""
    client = await Client.connect(address)
    client.send(b"".join(requests))
    answers = [await client.answer() for _ in requests]
    await client.close()
    return answers


def raw_input(call: Call) -> bytes:
    assert call.message is not None
    raw: bytes = ModelInferRequest.FromString(call.message).raw_input_contents[0]
    return raw


PACKERS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", PACKERS)
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_compressed_body_is_the_same_call(coding: str, chunked: bool) -> None:
    service = ReceivingService()
    edge = Edge(service)
    packed = PACKERS[coding](infer_body([1.0, 2.0, 3.0]))
    if chunked:
        body = b"".join(b"%x\r\n%b\r\n" % (1, packed[i : i + 1]) for i in range(len(packed))) + b"0\r\n\r\n"
        request = post(body=body, Content_Encoding=coding, Transfer_Encoding="chunked")
    else:
        request = post(body=packed, Content_Encoding=coding)
    async with running(edge) as address:
        [answer] = await talk(address, request)
    assert answer.status == 200
    assert raw_input(service.calls[0]) == struct.pack("<3f", 1, 2, 3)


async def test_the_header_length_counts_decompressed_json_and_may_exceed_the_content_length() -> None:
    service = ReceivingService()
    edge = Edge(service)
    body, length = binary_body(struct.pack("<2f", 5, 6))
    packed = gzip.compress(body)
    assert length > len(packed)
    async with running(edge) as address:
        good = post(body=packed, Content_Encoding="gzip", Inference_Header_Content_Length=str(length))
        over = post(body=packed, Content_Encoding="gzip", Inference_Header_Content_Length=str(len(body) + 1))
        answers = await talk(address, good, over)
    assert [answer.status for answer in answers] == [200, 400]
    assert raw_input(service.calls[0]) == struct.pack("<2f", 5, 6)
    assert f"the body has only {len(body)} bytes" in answers[1].error


async def test_a_raw_body_may_be_compressed_and_an_empty_one_is_raw() -> None:
    service = ReceivingService()
    edge = Edge(service)
    raw = struct.pack("<4f", 1, 2, 3, 4)
    async with running(edge) as address:
        answers = await talk(
            address,
            post(body=zlib.compress(raw), Content_Encoding="deflate", Inference_Header_Content_Length="0"),
            post(body=gzip.compress(b""), Content_Encoding="gzip"),
        )
    assert [answer.status for answer in answers] == [200, 200]
    assert raw_input(service.calls[0]) == raw
    assert raw_input(service.calls[1]) == b""


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        (b"", "nothing to be decompressed"),
        (infer_body(), "not valid"),
        (gzip.compress(infer_body())[:-1], "cut short"),
        (gzip.compress(infer_body()) + b"GET / HTTP/1.1", "behind the end"),
        (gzip.compress(infer_body()) * 2, "behind the end"),
    ],
)
async def test_a_body_that_is_not_one_whole_compressed_body_is_400_before_the_model_is_asked(
    packed: bytes, why: str
) -> None:
    served: list[Call] = []
    edge = Edge(ReceivingService(lambda call: served.append(call) or Reply(infer_response())))  # type: ignore[func-returns-value]
    async with running(edge) as address:
        answers = await talk(address, post(body=packed, Content_Encoding="gzip"), post())
    assert [answer.status for answer in answers] == [400, 200]
    assert why in answers[0].error
    assert "content-encoding" not in answers[0].headers
    assert len(served) == 1


async def test_a_bomb_is_refused_when_it_passes_the_limit_and_not_when_it_has_all_come() -> None:
    """1 MiB of a bomb of 1 GiB: the answer comes while the rest is withheld."""
    edge = Edge(ReceivingService(), body_bytes_max=8 * MIB, json_bytes_max=8 * MIB, memory_bytes=16 * MIB)
    bomb = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = bomb.compress(bytes(64 * MIB))
    async with running(edge) as address, asyncio.timeout(WAIT_S):
        client = await Client.connect(address)
        client.send(post(body=packed, Content_Encoding="gzip", Content_Length=str(MIB)))
        answer = await client.answer()
        await client.close()
    assert answer.status == 413
    assert "decompresses to more than 8388608 bytes" in answer.error
    assert edge.budget.statistics(0.0)["high_bytes"] <= 8 * MIB + 1 + 2 * MIB


@pytest.mark.parametrize("named", [False, True])
async def test_the_limits_hold_for_the_decompressed_body(named: bool) -> None:
    edge = Edge(ReceivingService(), body_bytes_max=4000, json_bytes_max=1000)
    values = bytes(4000 if named else 1600)
    body, length = binary_body(values)
    if not named:
        body = infer_body([0.0] * 400)
        assert 1000 < len(body) < 4000
    headers = {"Inference_Header_Content_Length": str(length)} if named else {}
    async with running(edge) as address:
        [answer] = await talk(address, post(body=gzip.compress(body), Content_Encoding="gzip", **headers))
    assert answer.status == 413
    assert "at most 4000" in answer.error if named else "at most 1000 of JSON" in answer.error


async def test_the_json_limit_holds_for_decompressed_json_before_binary_data() -> None:
    edge = Edge(ReceivingService(), body_bytes_max=100_000, json_bytes_max=1000)
    body, length = binary_body(bytes(4000))
    body, length = b" " * 2000 + body, length + 2000
    request = post(body=gzip.compress(body), Content_Encoding="gzip", Inference_Header_Content_Length=str(length))
    async with running(edge) as address:
        [answer] = await talk(address, request)
    assert answer.status == 413
    assert f"the JSON part has {length} bytes" in answer.error


async def test_a_body_of_exactly_the_limit_is_taken_even_if_compressing_made_it_larger() -> None:
    values = random.Random(1).randbytes(400_000)
    body, length = binary_body(values)
    service = ReceivingService()
    edge = Edge(service, body_bytes_max=len(body))
    packed = gzip.compress(body, 1)
    while len(packed) <= len(body):
        packed = gzip.compress(body, 0)
    request = post(body=packed, Content_Encoding="gzip", Inference_Header_Content_Length=str(length))
    async with running(edge) as address:
        [answer] = await talk(address, request)
    assert answer.status == 200
    assert raw_input(service.calls[0]) == values


async def test_memory_is_asked_for_as_the_body_grows_and_given_back() -> None:
    edge = Edge(ReceivingService(), memory_bytes=300_000)
    body, length = binary_body(bytes(1_000_000))
    async with running(edge) as address:
        request = post(body=gzip.compress(body), Content_Encoding="gzip", Inference_Header_Content_Length=str(length))
        answers = await talk(address, request, post())
    assert [answer.status for answer in answers] == [503, 200]
    assert answers[0].headers["x-sluice-reason"] == "body_memory"
    assert edge.budget.statistics(0.0)["high_bytes"] <= 300_000


async def test_a_small_body_is_inflated_at_once_and_a_large_one_by_the_workers_in_slices() -> None:
    service = GatedService()
    edge = Edge(service)
    workers = work_by_hand(edge)
    transport = edge.connect()
    transport.feed(post(body=gzip.compress(infer_body()), Content_Encoding="gzip"))
    (await service.next()).answer()
    await turns()
    assert transport.statuses == [200]
    assert not workers.waiting

    values = bytes(INLINE_INFLATE_BYTES + 3 * INFLATE_SLICE_BYTES)
    body, length = binary_body(values)
    packed = gzip.compress(body)
    transport.feed(post(body=packed, Content_Encoding="gzip", Inference_Header_Content_Length=str(length))[:-10])
    await turns()
    while workers.waiting:
        await workers.work()
    assert workers.done >= 3, "what has come is decoded before the rest is there"
    transport.feed(packed[-10:])
    await turns()
    while workers.waiting:
        await workers.work()
    gated = await service.next()
    assert raw_input(gated.call) == values
    assert edge.budget.used_bytes >= len(values)
    gated.answer()
    await turns()
    assert transport.statuses == [200, 200]
    assert edge.budget.used_bytes == 0


async def test_a_caller_that_leaves_while_its_body_is_inflated_leaves_nothing_behind() -> None:
    edge = Edge(GatedService())
    workers = work_by_hand(edge)
    transport = edge.connect()
    body, length = binary_body(bytes(5 * MIB))
    transport.feed(post(body=gzip.compress(body), Content_Encoding="gzip", Inference_Header_Content_Length=str(length)))
    await turns()
    assert len(workers.waiting) == 1
    transport.reset()
    await turns()
    await workers.work()
    edge.nothing_is_left()
    assert not workers.waiting


async def test_a_body_that_ends_early_while_it_is_inflated_fails_once() -> None:
    """The time-out strikes while a worker has a slice of it."""
    clock = ManualClock()
    edge = Edge(ReceivingService(), clock=clock, limits=HttpLimits(body_idle_timeout_ms=1000))
    workers = work_by_hand(edge)
    transport = edge.connect()
    body, length = binary_body(bytes(5 * MIB))
    request = post(body=gzip.compress(body), Content_Encoding="gzip", Inference_Header_Content_Length=str(length))
    transport.feed(request[:-5])
    await turns()
    assert workers.waiting
    edge.advance(1.5)
    await turns()
    while workers.waiting:
        await workers.work()
    assert transport.statuses == [408]
    await turns()
    edge.nothing_is_left()


async def test_real_threads_inflate_and_deflate_large_bodies(threads: ThreadWorkers) -> None:
    elements = MIB // 4
    service = ReceivingService(lambda call: Reply(infer_response(elements=elements)))
    edge = Edge(service)
    edge.server.kit.coding.workers = threads
    body, length = binary_body(bytes(3 * MIB))
    request = post(
        body=gzip.compress(body),
        Content_Encoding="gzip",
        Accept_Encoding="gzip",
        Inference_Header_Content_Length=str(length),
    )
    async with running(edge) as address:
        [answer] = await talk(address, request)
    assert len(raw_input(service.calls[0])) == 3 * MIB
    unpacked = gzip.decompress(answer.body)
    head = int(answer.headers["inference-header-content-length"])
    assert unpacked[head:] == bytes(MIB)


# --- answers ----------------------------------------------------------------------------------------------------------


async def ask(edge: Edge, request: bytes) -> Answer:
    async with running(edge) as address:
        [answer] = await talk(address, request)
    return answer


async def test_every_size_is_compressed_if_asked_for_and_equals_the_plain_answer() -> None:
    for elements in (1, 100, 20_000):
        plain = await ask(Edge(ReceivingService(lambda call: Reply(infer_response(elements=elements)))), post())  # noqa: B023
        for coding, unpack in (("gzip", gzip.decompress), ("deflate", zlib.decompress)):
            edge = Edge(ReceivingService(lambda call: Reply(infer_response(elements=elements))))  # noqa: B023
            packed = await ask(edge, post(Accept_Encoding=coding))
            assert packed.headers["content-encoding"] == coding
            assert unpack(packed.body) == plain.body
            assert packed.headers["content-type"] == plain.headers["content-type"] == "application/json"
            same = set(packed.headers) - {"content-encoding"}
            assert same == set(plain.headers)


async def test_what_cannot_be_compressed_is_sent_larger_as_triton_does() -> None:
    """The two answers are one rule: what was asked for is what is sent, whatever the size."""
    raw = random.Random(5).randbytes(8000)
    message = ModelInferResponse(model_name="fraud", model_version="1", raw_output_contents=[raw])
    message.outputs.add(name="y", datatype="FP32", shape=[2000])
    body, length = binary_body(b"")
    request = post(body=body, Accept_Encoding="gzip", Inference_Header_Content_Length=str(length))
    answer = await ask(Edge(ReceivingService(lambda call: Reply(message.SerializeToString()))), request)
    assert answer.headers["content-encoding"] == "gzip"
    plain = gzip.decompress(answer.body)
    head = int(answer.headers["inference-header-content-length"])
    assert plain[head:] == raw
    assert len(answer.body) - head > 0.98 * len(raw)
    assert json.loads(plain[:head])["outputs"][0]["parameters"] == {"binary_data_size": 8000}


@pytest.mark.parametrize("wish", ["identity", "gzip;q=0", "br", "*", ""])
async def test_an_answer_is_plain_if_nothing_else_is_wanted(wish: str) -> None:
    answer = await ask(Edge(ReceivingService()), post(Accept_Encoding=wish))
    assert "content-encoding" not in answer.headers
    json.loads(answer.body)


async def test_errors_are_never_compressed() -> None:
    edge = Edge(ReceivingService())
    async with running(edge) as address:
        answers = await talk(
            address,
            post(body=b"{}", Accept_Encoding="gzip"),
            post("/v2/nowhere", Accept_Encoding="gzip"),
            post("/v2/models/fraud/infer/", Accept_Encoding="gzip"),
        )
    for answer in answers:
        assert answer.status >= 400
        assert "content-encoding" not in answer.headers
        assert answer.error


async def test_the_policy_switches_compression_of_answers_off_and_sets_its_level() -> None:
    edge = Edge(ReceivingService(), limits=HttpLimits(response_compression=False))
    answer = await ask(edge, post(body=gzip.compress(infer_body()), Content_Encoding="gzip", Accept_Encoding="gzip"))
    assert answer.status == 200, "requests are another thing"
    assert "content-encoding" not in answer.headers

    sizes = {}
    message = infer_response(elements=3000)
    for level in (1, 9):
        edge = Edge(ReceivingService(lambda call: Reply(message)))
        edge.server.use(HttpLimits(response_compression_level=level), edge.server.reader)
        sizes[level] = len((await ask(edge, post(Accept_Encoding="gzip"))).body)
    assert sizes[9] < sizes[1]


async def test_a_large_answer_is_deflated_by_the_workers_and_a_small_one_at_once() -> None:
    service = GatedService()
    edge = Edge(service)
    workers = work_by_hand(edge)
    transport = edge.connect()
    body, length = binary_body(b"")
    request = post(body=body, Accept_Encoding="gzip", Inference_Header_Content_Length=str(length))
    transport.feed(request)
    (await service.next()).answer(infer_response(elements=INLINE_DEFLATE_BYTES // 4 - 100))
    await turns()
    assert transport.statuses == [200]
    assert not workers.waiting
    transport.feed(request)
    values = 3 * DEFLATE_SLICE_BYTES // 4
    (await service.next()).answer(infer_response(elements=values))
    await turns()
    while workers.waiting:
        assert transport.statuses == [200]
        await workers.work()
    assert workers.done == 1 + 3 + 1, "the JSON, three slices, the end"
    assert transport.statuses == [200, 200]
    answer = read_answers(bytes(transport.sent))[1]
    assert gzip.decompress(answer.body).endswith(bytes(4 * values))
    assert service.outcomes == [Outcome.OK, Outcome.OK]


async def test_a_deadline_that_passes_during_compression_is_a_504_and_the_rest_is_not_done() -> None:
    clock = ManualClock()
    service = GatedService()
    edge = Edge(service, clock=clock)
    workers = work_by_hand(edge)
    transport = edge.connect()
    transport.feed(post(Accept_Encoding="gzip"))
    gated = await service.next()
    gated.call.deadline_s = clock.now_s() + 1.0
    gated.answer(infer_response(elements=1_000_000))
    await turns(200)  # so large an answer is written in steps
    await workers.work()
    clock.advance(2.0)
    await workers.work()
    assert transport.statuses == [504]
    assert not workers.waiting
    assert service.outcomes == [Outcome.EXPIRED]


async def test_a_caller_that_leaves_during_compression_ends_the_call() -> None:
    service = GatedService()
    edge = Edge(service)
    work_by_hand(edge)
    transport = edge.connect()
    transport.feed(post(Accept_Encoding="gzip"))
    (await service.next()).answer(infer_response(elements=1_000_000))
    await turns(200)
    transport.reset()
    await turns()
    assert service.outcomes == [Outcome.ABANDONED]
    edge.nothing_is_left()


async def test_answers_keep_their_order_when_a_later_one_is_compressed_sooner() -> None:
    service = GatedService()
    edge = Edge(service)
    workers = work_by_hand(edge)
    transport = edge.connect()
    transport.feed(post(Accept_Encoding="gzip") + post(Accept_Encoding="gzip"))
    first, second = await service.next(), await service.next()
    first.answer(infer_response(elements=100_000))
    second.answer(infer_response(elements=2))
    await turns()
    assert transport.statuses == []
    while workers.waiting:
        await workers.work()
    assert transport.statuses == [200, 200]
    sizes = [len(gzip.decompress(answer.body)) for answer in read_answers(bytes(transport.sent))]
    assert sizes[0] > sizes[1]


def calls_and_bodies() -> list[object]:
    return [thing for thing in gc.get_objects() if type(thing) in (HttpCall, InflatingBody)]


async def test_a_call_with_a_compressed_body_is_gone_with_its_answer_and_waits_for_no_collector() -> None:
    edge = Edge(ReceivingService())
    transport = edge.connect()
    gc.collect()
    others = len(calls_and_bodies())  # what tests before this one hold on to
    gc.disable()
    try:
        for body in (gzip.compress(infer_body()), b"no gzip", gzip.compress(bytes(17 * MIB))):
            transport.feed(post(body=body, Content_Encoding="gzip", Accept_Encoding="gzip"))
            await turns()
        assert transport.statuses == [200, 400, 413]
        assert len(calls_and_bodies()) == others
    finally:
        gc.enable()
