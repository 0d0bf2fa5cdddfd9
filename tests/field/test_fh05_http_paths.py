"""FH-05 over HTTP: which model a path names. The service writes down what it was asked for."""

from __future__ import annotations

import pytest

from gateway.core.reply import Reply
from tests.unit.edge_clients import infer_response, post, read_answers
from tests.unit.edge_driving import Edge, ReceivingService, turns

NAMED = [
    ("/v2/models/team%2Fner/infer", "team/ner", ""),
    ("/v2/models/team%2fner/infer", "team/ner", ""),
    ("/v2/models/team%252Fner/infer", "team%2Fner", ""),
    ("/v2/models/m%256fdel/infer", "m%6fdel", ""),
    ("/v2/models/m%6fdel/infer", "model", ""),
    ("/v2/models/yolo.v5/versions/2/infer", "yolo.v5", "2"),
    ("/v2/models/%C3%BCbung/infer", "übung", ""),
    ("/v2/models/a%20b/infer", "a b", ""),
    ("/v2/models/a+b/infer", "a+b", ""),
    ("/v2/models/...%2Fa/infer", ".../a", ""),
    ("/v2/models/stats/infer", "stats", ""),
    ("/v2/models/m/infer?next=/v2/models/other/infer", "m", ""),
    ("/v2/models/m/versions/0/infer", "m", "0"),
    ("http://gateway/v2/models/m/infer", "m", ""),
]
REFUSED = [
    ("/v2/models/team/ner/infer", 404),
    ("/v2/models/%2e%2e/infer", 400),
    ("/v2/models/%2e/infer", 400),
    ("/v2/models/../infer", 400),
    ("/v2/models/a%2F..%2Fb/infer", 400),
    ("/v2/models/../../v2/models/m/infer", 404),
    ("/v2/models/x%00y/infer", 400),
    ("/v2/models/x%0d%0ay/infer", 400),
    ("/v2/models/x%7fy/infer", 400),
    ("/v2/models/x%zzy/infer", 400),
    ("/v2/models/x%/infer", 400),
    ("/v2/models/x%ffy/infer", 400),
    ("/v2/models/%c0%ae%c0%ae/infer", 400),
    ("/v2/models//infer", 404),
    ("/v2/models/yolo.v5/infer/", 404),
    ("//v2/models/yolo.v5/infer", 404),
    ("/v2//models/yolo.v5/infer", 404),
    ("/v2/models/yolo.v5//infer", 404),
    ("/V2/models/yolo.v5/infer", 404),
    ("/v2/models/yolo.v5/inf%65r", 404),
    ("/v2%2Fmodels%2Fyolo.v5%2Finfer", 404),
]
BAD_VERSIONS = ["latest", "", "01", "-1", "1.0", "1e3", "+1", "%31%20", "1%2F2", "9" * 30, "0x1"]


def asking() -> tuple[Edge, ReceivingService]:
    service = ReceivingService(lambda call: Reply(infer_response(call.model)))
    return Edge(service), service


@pytest.mark.parametrize(("target", "model", "version"), NAMED)
async def test_a_path_names_exactly_one_model(target: str, model: str, version: str) -> None:
    edge, service = asking()
    client = edge.connect()
    client.feed(post(target))
    await turns()
    assert client.statuses == [200]
    assert [(call.model, call.version) for call in service.calls] == [(model, version)]


@pytest.mark.parametrize(("target", "status"), REFUSED)
async def test_what_names_none_reaches_no_model_and_is_no_redirect(target: str, status: int) -> None:
    edge, service = asking()
    client = edge.connect()
    client.feed(post(target))
    await turns()
    (answer,) = read_answers(bytes(client.sent))
    assert answer.status == status
    assert answer.error
    assert "location" not in answer.headers
    assert service.calls == []


@pytest.mark.parametrize("version", BAD_VERSIONS)
async def test_a_version_that_is_none_is_refused_by_name_and_never_another(version: str) -> None:
    edge, service = asking()
    client = edge.connect()
    client.feed(post(f"/v2/models/yolo.v5/versions/{version}/infer"))
    await turns()
    (answer,) = read_answers(bytes(client.sent))
    assert answer.status in {400, 404}
    assert "version" in answer.error
    if version.isalnum() and len(version) < 20:
        assert version in answer.error
    for call in service.calls:
        assert call.message is None
        assert call.version not in {"1", "10"}
    assert service.outcomes == []


async def test_a_model_and_its_look_alikes_stay_apart_on_one_connection() -> None:
    edge, service = asking()
    client = edge.connect()
    for target in ("m%256fdel", "m%6fdel", "model", "m%25256fdel"):
        client.feed(post(f"/v2/models/{target}/infer"))
        await turns()
    assert [call.model for call in service.calls] == ["m%6fdel", "model", "model", "m%256fdel"]
    names = [answer.headers["x-sluice-model"] for answer in read_answers(bytes(client.sent))]
    assert names == ["m%256fdel", "model", "model", "m%25256fdel"]
