"""Quotas of whole gateways: two processes over real Tritons and a real Redis, by HTTP and by gRPC."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as stubs

from deploy.local import LocalFleet
from tests.conftest import replicas_of
from tests.support.gateway_process import MODEL_POLICIES, GatewayProcess, write_policies
from tests.support.redis_server import RedisServer, redis_server

QUOTAS = {"gateways": 2, "default": {"rate_per_s": 4, "burst": 8, "models": {"accel": {"concurrency_max": 2}}}}
BODY = json.dumps({"inputs": [{"name": "work", "datatype": "FP32", "shape": [1, 1], "data": [1]}]})


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
def pair(
    fleet: LocalFleet, redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[GatewayProcess]]:
    monkeypatch.setenv("SLUICE_REDIS_URL", redis.url)
    models = {"accel": MODEL_POLICIES["accel"]}
    folders = [tmp_path / name for name in ("one", "other")]
    listen = [write_policies(folder, replicas_of(fleet), models=models, fleet={"quotas": QUOTAS}) for folder in folders]
    with GatewayProcess(folders[0], listen[0]) as one, GatewayProcess(folders[1], listen[1]) as other:
        yield [one.wait_ready(), other.wait_ready()]


def infer(gateway: GatewayProcess) -> tuple[int, dict[str, str], Any]:
    host, _, port = gateway.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    connection.request("POST", "/v2/models/accel/infer", body=BODY, headers={"x-sluice-explain": "1"})
    response = connection.getresponse()
    result = response.status, {k.lower(): v for k, v in response.getheaders()}, json.loads(response.read())
    connection.close()
    return result


def notes(headers: dict[str, str]) -> list[dict[str, Any]]:
    decisions: list[dict[str, Any]] = json.loads(headers["x-sluice-explain"])["decisions"]
    return decisions


def test_two_gateways_share_one_quota_tell_who_is_over_it_and_go_on_without_redis(
    pair: list[GatewayProcess], redis: RedisServer
) -> None:
    began_s, granted = time.monotonic(), 0
    refused: list[tuple[dict[str, str], Any]] = []
    while time.monotonic() - began_s < 6.0:
        for gateway in pair:
            status, headers, body = infer(gateway)
            assert status in (200, 429), body
            if status == 200:
                granted += 1
            else:
                refused.append((headers, body))
        time.sleep(0.03)
    took_s = time.monotonic() - began_s
    assert refused
    assert granted <= 8 + 4 * (took_s + 1) + 8, "burst, rate, lease, and the shares of the burst"
    assert granted >= 4 * took_s * 0.7

    told = [next(each for each in notes(headers) if each["by"] == "quota") for headers, _ in refused]
    headers, body = next(one for one, word in zip(refused, told, strict=True) if word["decided"] == "rate")
    assert headers["x-sluice-reason"] == "quota"
    assert int(headers["retry-after"]) >= 1
    assert body == {"error": "this caller's quota of 4 calls a second is used up; try again later"}
    assert {(word["decided"], word["limit"]) for word in told} <= {("rate", "tenant"), ("concurrency", "model")}

    with grpc.insecure_channel(pair[0].grpc) as channel:
        request = pb.ModelInferRequest(model_name="accel")
        request.inputs.add(name="work", datatype="FP32", shape=[1, 1]).contents.fp32_contents.append(1)
        infer_over_grpc = stubs.GRPCInferenceServiceStub(channel).ModelInfer
        with pytest.raises(grpc.RpcError) as caught:
            any(infer_over_grpc(request, timeout=20) is None for _ in range(200))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailing = dict(caught.value.trailing_metadata() or ())
        assert trailing["x-sluice-reason"] == "quota"
        assert int(trailing["grpc-retry-pushback-ms"]) >= 1

    page = pair[0].get("metrics", "/metrics")[1].decode()
    assert 'sluice_store_up{store="redis"} 1.0' in page
    assert 'sluice_calls_total{code="RESOURCE_EXHAUSTED",model="accel",protocol="http",reason="quota"}' in page
    assert "anonymous" not in page, "no tenant on the public page"

    redis.kill()
    began_s, granted = time.monotonic(), 0
    while time.monotonic() - began_s < 6.0:
        for gateway in pair:
            status, _, body = infer(gateway)
            assert status in (200, 429), body
            granted += status == 200
        time.sleep(0.03)
    took_s = time.monotonic() - began_s
    assert granted <= 2 * (4 + 2 * (took_s + 1)) + 8, "each its half, and what it still held"
    assert granted >= 4 * took_s * 0.6, "a Redis that is gone refuses nobody"
    assert 'sluice_store_up{store="redis"} 0.0' in pair[0].get("metrics", "/metrics")[1].decode()
    assert [gateway.stop() for gateway in pair] == [0, 0]
    decisions = [each["decisions"] for each in pair[0].records() if each["reason"] == "quota"]
    assert decisions
    assert all("quota" in {each["by"] for each in decision} for decision in decisions)


def test_an_address_that_is_none_is_refused_at_the_start_and_not_shown(
    fleet: LocalFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_REDIS_URL", "http://user:secret@10.0.0.1")
    listen = write_policies(tmp_path, replicas_of(fleet), models={"accel": MODEL_POLICIES["accel"]})
    process = GatewayProcess(tmp_path, listen)
    assert process.process.wait(60) == 1
    text = process.log_text()
    assert "SLUICE_REDIS_URL cannot be used" in text
    assert "redis://host:6379/0" in text
    assert "secret" not in text
