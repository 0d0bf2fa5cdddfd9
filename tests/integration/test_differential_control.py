"""Everything that is asked besides inferences, over both protocols: paths, metadata, readiness, what is refused."""

from __future__ import annotations

import pytest
from tritonclient.grpc import service_pb2

from tests.integration.conftest import ABSENT, HIDDEN, OPEN
from tests.support.differential import Differential
from tests.support.differential_grpc import SERVICE, unary
from tests.support.differential_http import request

KNOWN = (*OPEN, HIDDEN)
PLACES = ("", "/versions/1", "/ready", "/versions/1/ready", "/config", "/versions/1/config")


@pytest.mark.parametrize("place", PLACES)
def test_what_is_said_of_models_is_tritons_own(differential: Differential, place: str) -> None:
    for model in OPEN:
        differential.check(request(f"/v2/models/{model}{place}"))


SAME_PATHS = (
    "/v2/", "/", "//v2", "/v2//models", "/V2", "/v2/models", "/v2/models/", "/v2/health", "/v2/health/live",
    "/v2/health/live/",
    "/v2/health/ready", "/v2/health/live?a=b", "/v2/health/live?", "/v2/models/identity?x=/v2", "/v2/models/identity/",
    "/v2/models/identity/ready/", "/v2/models/identity/versions/1/", "/v2/models/identity/versions",
    "/v2/models/identity/nosuch",
    "/v2/models/identity/versions/1/nosuch", "/v2/models/nosuch", "/v2/models/nosuch/config",
    "/v2/models/nosuch/versions/1",
    "/v2/models/nosuch/stats", "/v2/models/identity/versions/7", "/v2/models/identity/versions/7/config",
    "/v2/models/identity/versions/7/stats", "/v2/models/identity/versions/0", "/metrics", "/v2/models/identity/infer/",
    "/v2/models/a%2Fb", "/v2/repository", "/v2/trace", "/v3", "/v2/models/identity/generate", "/" + "a/" * 40,
)  # fmt: skip


@pytest.mark.parametrize("target", SAME_PATHS)
def test_paths_lead_to_the_same_place_or_nowhere(differential: Differential, target: str) -> None:
    differential.check(request(target))


OTHER_PATHS = {
    "/v2/models/id%65ntity": "path",
    "/v2/models/id%65ntity/ready": "path",
    "/v2/models/%69dentity/config": "path",
    "/v2/models/a%": "path",
    "/v2/models/%00": "path",
    "/v2/models/%ff": "path",
    "/v2/models/../x": "path",
    "/v2/./models/identity": "path",
    "/v2/models/%2e%2e": "path",
    "/v2#fragment": "path",
    "/v2/models/\xe9": "path",
    "/v2/models/identity/versions/": "version-form",
    "/v2/models/identity/versions/a": "version-form",
    "/v2/models/identity/versions/01": "version-form",
    "/v2/models/identity/versions/-1/ready": "version-form",
    "/v2/models/identity/versions/1.0/config": "version-form",
    "/v2/models/nosuch/ready": "unknown-model-ready",
    "/v2/models/identity/versions/7/ready": "unknown-model-ready",
    f"/v2/models/{ABSENT}": "no-replica",
    f"/v2/models/{ABSENT}/config": "no-replica",
    f"/v2/models/{ABSENT}/stats": "no-replica",
    f"/v2/models/{ABSENT}/versions/1": "no-replica",
    "/v2": "extensions",
    "/v2?a=b": "extensions",
    "/v2/models/stats": "statistics",
    "/v2/trace/setting": "server-settings",
    "/v2/models/identity/trace/setting": "server-settings",
    "/v2/logging": "server-settings",
    "/v2/systemsharedmemory/status": "shared-memory",
    "/v2/cudasharedmemory/status": "shared-memory",
    "/v2/systemsharedmemory/region/r/status": "shared-memory",
}


@pytest.mark.parametrize("target", OTHER_PATHS)
def test_deviations_of_paths(differential: Differential, target: str) -> None:
    differential.check(request(target), OTHER_PATHS[target])


def test_a_model_that_is_named_and_not_there_is_not_ready_as_on_triton(differential: Differential) -> None:
    differential.check(request(f"/v2/models/{ABSENT}/ready"))


def test_statistics_have_the_same_members(differential: Differential) -> None:
    for model in OPEN:
        for version in ("", "/versions/1"):
            comparison = differential.check_any(request(f"/v2/models/{model}{version}/stats"))
            assert comparison.through.status == 200


POSTS = {
    "/v2/repository/index": "repository-index",
    "/v2/repository/own/index": "repository-name",
    "/v2/repository/models/identity/load": "server-settings",
    "/v2/repository/models/nosuch/unload": "server-settings",
    "/v2/systemsharedmemory/region/r/register": "shared-memory",
    "/v2/systemsharedmemory/region/r/unregister": "shared-memory",
    "/v2/systemsharedmemory/unregister": "shared-memory",
    "/v2/cudasharedmemory/region/r/register": "shared-memory",
    "/v2/cudasharedmemory/region/r/unregister": "shared-memory",
}


@pytest.mark.parametrize("target", POSTS)
def test_deviations_of_posts(differential: Differential, target: str) -> None:
    """Loads are of what is loaded, and unloads of what is not: nothing changes on the server that they reach."""
    body = b"" if "index" in target else b'{"key":"/none","byte_size":8,"offset":0}' if "memory" in target else b"{}"
    differential.check(request(target, body), POSTS[target])


def test_a_load_into_a_repository_of_its_own_is_501_alike(differential: Differential) -> None:
    for what in ("load", "unload"):
        differential.check(request(f"/v2/repository/own/models/identity/{what}", b"{}"))


def test_the_index_in_every_form(differential: Differential) -> None:
    for body in (b"", b"{}", b'{"ready":true}', b'{"ready":false}', b'{"unknown":1}'):
        differential.check(request("/v2/repository/index", body), "repository-index")
    for body in (b"[]", b"{", b"null", b'{"ready":1}', b'{"ready":null}', b'"x"'):
        differential.check_any(request("/v2/repository/index", body))


# --- gRPC --------------------------------------------------------------------------------------------------------

ASKED = ("ModelReady", "ModelMetadata", "ModelConfig")
VERSIONS = ("", "1", "7", "0", "9223372036854775807")
ODD_VERSIONS = ("01", "1.0", " 1", "1 ", "+1", "-1", "a", "0x1", "9223372036854775808", "\0")


@pytest.mark.parametrize("method", ASKED)
def test_questions_about_models_over_grpc(differential: Differential, method: str) -> None:
    for model in (*OPEN, "nosuch", "", "é", "a/b", "a\0b", "x" * 300):
        for version in VERSIONS:
            differential.check(unary(method, service_pb2.ModelReadyRequest(name=model, version=version)))
    for version in ODD_VERSIONS:
        comparison = differential.check_any(
            unary(method, service_pb2.ModelReadyRequest(name="identity", version=version))
        )
        assert comparison.through.code == "INVALID_ARGUMENT"
    named = service_pb2.ModelReadyRequest(name=ABSENT)
    differential.check(unary(method, named), *(() if method == "ModelReady" else ("no-replica",)))


def test_questions_about_the_server_over_grpc(differential: Differential) -> None:
    for method in ("ServerLive", "ServerReady", "/grpc.health.v1.Health/Check"):
        for message in (b"", b"\x0a\x01x", b"\x0a\x00", b"\x50\x01"):
            differential.check(unary(method, message))
    differential.check(unary("ServerMetadata", b""), "extensions")
    differential.check(unary("/grpc.health.v1.Health/Watch", b""))
    for method in ("ModelStatistics", "RepositoryIndex"):
        differential.check_any(unary(method, b""))
    for model in ("identity", "nosuch"):
        differential.check_any(unary("ModelStatistics", service_pb2.ModelStatisticsRequest(name=model, version="7")))
    differential.check(unary("RepositoryIndex", service_pb2.RepositoryIndexRequest(repository_name="own")))


@pytest.mark.parametrize(
    ("method", "row"),
    [
        ("TraceSetting", "server-settings"),
        ("LogSettings", "server-settings"),
        ("RepositoryModelUnload", "server-settings"),
        ("SystemSharedMemoryStatus", "shared-memory"),
        ("SystemSharedMemoryRegister", "shared-memory"),
        ("SystemSharedMemoryUnregister", "shared-memory"),
        ("CudaSharedMemoryStatus", "shared-memory"),
        ("CudaSharedMemoryRegister", "shared-memory"),
        ("CudaSharedMemoryUnregister", "shared-memory"),
    ],
)
def test_deviations_of_methods(differential: Differential, method: str, row: str) -> None:
    differential.check(unary(method, b""), row)


@pytest.mark.parametrize(
    "method",
    [
        SERVICE + "Nosuch",
        "/nosuch.Service/Method",
        "/x",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
def test_unknown_methods_are_unimplemented_alike(differential: Differential, method: str) -> None:
    for message in (b"", b"abc"):
        comparison = differential.check(unary(method, message))
        assert comparison.direct.text == comparison.through.text


CHECK = "/grpc.health.v1.Health/Check"
UNREADABLE = (b"\xff\xff\xff", b"\x0a", b"\x0a\x05ab", b"\x08", b"\x0a\x01\xff", b"\x0f", b"\x00\x00")


@pytest.mark.parametrize("method", [*ASKED, "ModelInfer", "ServerLive", "ServerReady", "ServerMetadata", CHECK])
def test_bytes_that_are_no_message(differential: Differential, method: str) -> None:
    for message in UNREADABLE:
        if method in ("ModelInfer", *ASKED, CHECK) or not message.startswith(b"\x0a\x01"):
            differential.check(unary(method, message))


@pytest.mark.parametrize("method", [*ASKED, "ModelInfer"])
def test_deviation_grpc_strict(differential: Differential, method: str) -> None:
    differential.check(unary(method, b"\x08\x01"), "grpc-strict")
    differential.check(unary(method, b"\x15abcd"), "grpc-strict")


def test_fields_that_nobody_knows_are_overlooked(differential: Differential) -> None:
    known = service_pb2.ModelReadyRequest(name="identity").SerializeToString()
    for more in (b"\xa0\x06\x05", b"\xa2\x06\x03abc", b"\xa5\x06abcd"):
        for method in (*ASKED, "ServerLive", CHECK):
            differential.check(unary(method, (known if method in ASKED else b"") + more))
