"""`infer` of a decoupled model over HTTP: whatever is wrong with the body, the caller hears first that the route does
not fit the model, as from Triton.
"""

from __future__ import annotations

import json

import pytest
from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelConfigResponse

from gateway.core.faces import ModelConfigBytes
from gateway.edge.http_call import DECOUPLED
from tests.unit.edge_clients import post, read_answers
from tests.unit.edge_driving import CONFIG, Edge, ReceivingService, turns

BAD: dict[str, bytes] = {
    "raw bytes that fill no tensor": post(body=b"abc", Inference_Header_Content_Length="0"),
    "no JSON": post(body=b"{"),
    "a header length beyond the body": post(Inference_Header_Content_Length="9999"),
    "no gzip": post(body=b"no gzip", Content_Encoding="gzip"),
    "an unknown coding": post(Content_Encoding="br"),
    "more JSON than is taken": post(body=b" " * 3000),
}


def edge_of(*, decoupled: bool) -> tuple[Edge, ReceivingService]:
    config = json_format.Parse(CONFIG, ModelConfig())
    config.model_transaction_policy.decoupled = decoupled
    service = ReceivingService()
    edge = Edge(service, json_bytes_max=2000)
    edge.catalogue.config = ModelConfigBytes(ModelConfigResponse(config=config).SerializeToString(), b"")
    return edge, service


@pytest.mark.parametrize("what", BAD)
async def test_of_a_decoupled_model_that_is_told_before_what_is_wrong_with_the_body(what: str) -> None:
    for decoupled in (True, False):
        edge, service = edge_of(decoupled=decoupled)
        client = edge.connect()
        client.feed(BAD[what])
        await turns()
        (answer,) = read_answers(bytes(client.sent))
        if decoupled:
            assert (answer.status, answer.headers["x-sluice-reason"]) == (501, "bad_request")
            assert json.loads(answer.body) == {"error": DECOUPLED}
        else:
            assert answer.status in (400, 413, 501)
            assert DECOUPLED.encode() not in answer.body
        assert len(service.calls) == 1
        assert not service.outcomes
        edge.nothing_is_left()


async def test_a_good_body_goes_on_and_routes_that_stream_are_not_concerned() -> None:
    edge, service = edge_of(decoupled=True)
    client = edge.connect()
    client.feed(post())
    await turns()
    assert client.statuses == [200]
    client.feed(post("/v2/models/fraud/generate", b"{"))
    await turns()
    assert client.statuses == [200, 400]
    assert len(service.calls) == 2
    edge.nothing_is_left()


async def test_of_an_unknown_version_its_own_fault_is_told() -> None:
    edge, _ = edge_of(decoupled=True)
    client = edge.connect()
    client.feed(post("/v2/models/fraud/versions/9/infer", b"{"))
    await turns()
    assert client.statuses == [400]
