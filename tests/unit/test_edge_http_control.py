"""Control queries, refusals from the head alone, and what each answer carries."""

from __future__ import annotations

import json

import pytest

from gateway.core.call import Call, Identity
from gateway.core.errors import GatewayError, Reason
from gateway.core.reply import Reply
from gateway.edge.http_control import REFUSED
from gateway.wire.http_path import Route
from tests.support.http_answer import Answer
from tests.unit.edge_clients import get, infer_response, post, read_answers
from tests.unit.edge_driving import CONFIG, Doors, Edge, ReceivingService, turns


async def ask(edge: Edge, request: bytes) -> Answer:
    client = edge.connect()
    client.feed(request)
    await turns()
    (answer,) = read_answers(bytes(client.sent))
    client.reset()
    await turns()
    edge.nothing_is_left()
    return answer


@pytest.fixture
def edge() -> Edge:
    return Edge(ReceivingService())


@pytest.fixture
def guarded() -> Edge:
    keys = {"all": Identity("a"), "other": Identity("b", frozenset({"else"}))}
    return Edge(ReceivingService(), authenticator=Doors(keys))


async def test_health_is_a_status_and_nothing_else(edge: Edge) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/fraud/ready", "/v2/models/fraud/versions/1/ready"):
        answer = await ask(edge, get(path))
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["content-type"] == "text/plain"
        assert len(answer.headers["x-request-id"]) == 32


async def test_what_is_not_well_is_400_with_the_body_that_triton_gives(edge: Edge) -> None:
    edge.catalogue.live = edge.catalogue.ready = edge.catalogue.model_is_ready = False
    told = b'{"error":"Model version not ready"}'
    for path, body in (("/v2/health/live", b""), ("/v2/health/ready", b""), ("/v2/models/fraud/ready", told)):
        answer = await ask(edge, get(path))
        assert (answer.status, answer.body) == (400, body)


async def test_metadata_and_configuration_are_tritons_json(edge: Edge) -> None:
    server = await ask(edge, get("/v2"))
    assert json.loads(server.body) == {"name": "triton", "version": "2.51.0", "extensions": ["model_repository"]}
    model = await ask(edge, get("/v2/models/fraud/versions/1"))
    assert json.loads(model.body)["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}]
    assert model.headers["x-sluice-model"] == "fraud"
    assert (await ask(edge, get("/v2/models/fraud/config"))).body == CONFIG
    assert edge.catalogue.asked == [("fraud", "1"), ("fraud", "")]


async def test_unknown_models_and_versions_are_404_by_the_catalogues_word(edge: Edge) -> None:
    for path in ("/v2/models/x", "/v2/models/x/config", "/v2/models/x/ready", "/v2/models/fraud/versions/7"):
        answer = await ask(edge, get(path))
        assert answer.status == 404
        assert answer.error
        assert answer.headers["x-sluice-reason"] in {"unknown_model", "unknown_version"}


async def test_control_queries_need_a_key_and_health_does_not(guarded: Edge) -> None:
    for path in ("/v2", "/v2/models/fraud", "/v2/models/fraud/config"):
        refused = await ask(guarded, get(path))
        assert refused.status == 401
        assert refused.headers["www-authenticate"].startswith("Bearer")
        assert (await ask(guarded, get(path, x_api_key="all"))).status == 200
        assert (await ask(guarded, get(path, Authorization="Bearer all"))).status == 200
    for path in ("/v2/models/fraud", "/v2/models/fraud/config"):
        assert (await ask(guarded, get(path, x_api_key="other"))).status == 403
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/fraud/ready"):
        assert (await ask(guarded, get(path))).status == 200


async def test_without_a_key_nobody_learns_which_models_exist(guarded: Edge) -> None:
    known, unknown = await ask(guarded, get("/v2/models/fraud")), await ask(guarded, get("/v2/models/nope"))
    assert (known.status, known.body) == (unknown.status, unknown.body)


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v2/", "/v2/models", "/v2/models/fraud/infer/", "/v2/health", "/v2//health/live"]
)
async def test_an_unknown_path_is_tritons_404(edge: Edge, path: str) -> None:
    answer = await ask(edge, get(path))
    assert (answer.status, answer.error) == (404, "Not Found")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_another_method_is_tritons_405(edge: Edge, method: str) -> None:
    answer = await ask(edge, f"{method} /v2/models/fraud/infer HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    assert (answer.status, answer.error) == (405, "Method Not Allowed")
    assert answer.headers["allow"] == "POST"


async def test_head_is_405_without_a_body_and_the_connection_goes_on(edge: Edge) -> None:
    client = edge.connect()
    client.feed(b"HEAD /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n" + get("/v2/health/live"))
    head, _, rest = bytes(client.sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405 ")
    assert [answer.status for answer in read_answers(rest)] == [200]


@pytest.mark.parametrize("route", sorted(REFUSED, key=str))
async def test_the_rest_of_tritons_surface_is_501_with_what_to_do(edge: Edge, route: Route) -> None:
    path = route.template.replace("[", "").replace("]", "")
    for name, value in (("{model}", "fraud"), ("{version}", "1"), ("{repository}", "r"), ("{region}", "x")):
        path = path.replace(name, value)
    for method in route.methods:
        answer = await ask(edge, method + f" {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        assert answer.status == 501
        assert answer.error == REFUSED[route]
        assert answer.headers["x-sluice-reason"] == "unsupported"
    assert edge.notes.requests[-1] == (route.template, "501")


async def test_a_fault_of_the_catalogue_is_500_and_tells_nothing(edge: Edge) -> None:
    for fault in (ValueError("secret path /etc"), KeyboardInterrupt(), MemoryError(), GeneratorExit()):
        edge.catalogue.fault = fault
        answer = await ask(edge, get("/v2/health/live"))
        assert answer.status == 500
        assert "secret" not in answer.error
        assert answer.headers["x-sluice-reason"] == "internal"
    assert edge.notes.internal == 4


@pytest.mark.parametrize("coding", ["br", "GZIP", "x-gzip", "", "gzip, identity", "identity, gzip", "gzip, gzip"])
async def test_a_coding_that_is_not_taken_is_501_and_says_what_is_taken(edge: Edge, coding: str) -> None:
    answer = await ask(edge, post(Content_Encoding=coding))
    assert answer.status == 501
    assert answer.headers["accept-encoding"] == "gzip, deflate"
    assert (await ask(edge, post(Content_Encoding="identity"))).status == 200


async def test_control_queries_do_not_look_at_the_coding(edge: Edge) -> None:
    for target in ("/v2", "/v2/health/live", "/v2/models/fraud", "/v2/models/fraud/config"):
        answer = await ask(edge, get(target, Content_Encoding="br", Accept_Encoding="gzip"))
        assert answer.status == 200
        assert "content-encoding" not in answer.headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x_request_timeout_ms": "soon"}, 400),
        ({"x_request_id": "a\tb"}, 400),
        ({"x_sluice_explain": "maybe"}, 400),
        ({"x_sluice_version": "2"}, 501),
        ({"x_big": "v" * 13_000}, 431),
        ({"x_api_key": "a", "Authorization": "Bearer b"}, 400),
    ],
)
async def test_faults_of_client_headers_have_their_status(edge: Edge, headers: dict[str, str], status: int) -> None:
    answer = await ask(edge, post("/v2/models/fraud/infer", None, **headers))
    assert answer.status == status
    assert answer.headers["x-sluice-model"] == "fraud"
    assert len(answer.headers["x-request-id"]) == 32
    assert answer.error


async def test_an_inference_with_a_bad_header_is_a_call_all_the_same_and_identity_comes_first() -> None:
    class Strict(ReceivingService):
        async def send(self, call: Call) -> Reply:
            if call.credentials.api_key != "k":
                raise GatewayError(Reason.UNAUTHENTICATED, "no such key")
            return await super().send(call)

    service = Strict()
    edge = Edge(service)
    assert (await ask(edge, post(x_request_timeout_ms="soon"))).status == 401
    bad = await ask(edge, post("/v2/models/fraud/versions/latest/infer", x_api_key="k"))
    assert bad.status == 400
    assert "'latest'" in bad.error
    assert len(service.calls) == 1
    assert (service.calls[0].version, service.calls[0].message) == ("latest", None)


async def test_a_bad_body_is_400_with_what_is_wrong(edge: Edge) -> None:
    for body in (b"{", b"[]", b"null", b"\xff\xfe", b'{"inputs":[]', b"[" * 5000, b'{"inputs":{}}'):
        answer = await ask(edge, post(body=body))
        assert answer.status == 400
        assert answer.headers["x-sluice-reason"] == "bad_request"


async def test_json_and_binary_and_raw_requests_are_understood(edge: Edge) -> None:
    assert json.loads((await ask(edge, post())).body)["outputs"][0]["data"] == [0.0]
    document = json.dumps(
        {
            "id": "7",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "parameters": {"binary_data_size": 4}}],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }
    ).encode()
    answer = await ask(edge, post(body=document + b"\0\0\x80?", Inference_Header_Content_Length=str(len(document))))
    assert answer.status == 200
    length = int(answer.headers["inference-header-content-length"])
    assert json.loads(answer.body[:length])["id"] == "7"
    assert answer.body[length:] == b"\0\0\0\0"
    assert answer.headers["content-type"] == "application/octet-stream"
    raw = await ask(edge, post(body=b"\0\0\x80?", Inference_Header_Content_Length="0"))
    assert raw.status == 200
    for value in ("-1", "x", "99999", "1e3", ""):
        assert (await ask(edge, post(Inference_Header_Content_Length=value))).status == 400


async def test_an_answer_of_the_model_server_that_is_none_is_500_and_its_reply_is_closed() -> None:
    service = ReceivingService(lambda call: Reply(b"\xff\xff\xff"))
    edge = Edge(service)
    answer = await ask(edge, post())
    assert answer.status == 500
    assert answer.headers["x-sluice-reason"] == "upstream_broken"
    assert [outcome.value for outcome in service.outcomes] == ["broken"]


async def test_names_with_odd_bytes_come_back_percent_encoded() -> None:
    edge = Edge(ReceivingService(lambda call: Reply(infer_response("m%6fdel"))))
    answer = await ask(edge, post("/v2/models/m%256f%C3%BC%20del/infer"))
    assert answer.status == 200
    assert answer.headers["x-sluice-model"] == "m%256f%C3%BC%20del"


async def test_the_explanation_comes_on_request_and_with_errors_too() -> None:
    def respond(call: Call) -> Reply:
        if call.request_id == "bad":
            raise GatewayError(Reason.NO_REPLICA, "none")
        return Reply(infer_response())

    edge = Edge(ReceivingService(respond))
    assert "x-sluice-explain" not in (await ask(edge, post())).headers
    good = json.loads((await ask(edge, post(x_sluice_explain="1"))).headers["x-sluice-explain"])
    assert good["model"] == "fraud"
    bad = json.loads((await ask(edge, post(x_sluice_explain="1", x_request_id="bad"))).headers["x-sluice-explain"])
    assert bad["reason"] == "no_replica"


async def test_error_answers_carry_what_the_manual_says() -> None:
    def respond(call: Call) -> Reply:
        raise GatewayError(Reason.QUEUE_FULL, "full", retry_after_s=4.0)

    answer = await ask(Edge(ReceivingService(respond)), post(x_request_id="i"))
    assert answer.status == 503
    assert 4 <= int(answer.headers["retry-after"]) <= 6
    assert answer.headers["x-request-id"] == "i"
    assert answer.headers["x-sluice-model-version"] == "1"
    assert answer.headers["x-sluice-cache"] == "bypass"
    assert answer.headers["x-sluice-attempts"] == "0"
    assert answer.headers["x-sluice-reason"] == "queue_full"
    assert answer.headers["content-type"] == "application/json"
