"""Raw targets and the routes they name (field case FH-05)."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.http_path import PathMatch, PathMatcher, PathResult, Route, is_version, match_path

TABLE = [
    ("/v2", Route.SERVER_METADATA, "", ""),
    ("/v2/health/live", Route.HEALTH_LIVE, "", ""),
    ("/v2/health/ready", Route.HEALTH_READY, "", ""),
    ("/v2/models/m", Route.MODEL_METADATA, "m", ""),
    ("/v2/models/m/versions/3", Route.MODEL_METADATA, "m", "3"),
    ("/v2/models/m/ready", Route.MODEL_READY, "m", ""),
    ("/v2/models/m/versions/3/ready", Route.MODEL_READY, "m", "3"),
    ("/v2/models/m/config", Route.MODEL_CONFIG, "m", ""),
    ("/v2/models/m/versions/3/config", Route.MODEL_CONFIG, "m", "3"),
    ("/v2/models/m/infer", Route.MODEL_INFER, "m", ""),
    ("/v2/models/m/versions/3/infer", Route.MODEL_INFER, "m", "3"),
    ("/v2/models/m/generate", Route.MODEL_GENERATE, "m", ""),
    ("/v2/models/m/versions/3/generate", Route.MODEL_GENERATE, "m", "3"),
    ("/v2/models/m/generate_stream", Route.MODEL_GENERATE_STREAM, "m", ""),
    ("/v2/models/m/versions/3/generate_stream", Route.MODEL_GENERATE_STREAM, "m", "3"),
    ("/v2/models/m/stats", Route.MODEL_STATS, "m", ""),
    ("/v2/models/m/versions/3/stats", Route.MODEL_STATS, "m", "3"),
    ("/v2/models/stats", Route.ALL_STATS, "", ""),
    ("/v2/models/stats/infer", Route.MODEL_INFER, "stats", ""),
    ("/v2/models/%73tats", Route.MODEL_METADATA, "stats", ""),
    ("/v2/models/versions/versions/1/infer", Route.MODEL_INFER, "versions", "1"),
    ("/v2/models/m/trace/setting", Route.MODEL_TRACE_SETTING, "m", ""),
    ("/v2/trace/setting", Route.TRACE_SETTING, "", ""),
    ("/v2/logging", Route.LOGGING, "", ""),
    ("/v2/repository/index", Route.REPOSITORY_INDEX, "", ""),
    ("/v2/repository/r/index", Route.REPOSITORY_INDEX, "", ""),
    ("/v2/repository/models/m/load", Route.REPOSITORY_LOAD, "m", ""),
    ("/v2/repository/models/m/unload", Route.REPOSITORY_UNLOAD, "m", ""),
    ("/v2/repository/r/models/m/load", Route.REPOSITORY_LOAD, "m", ""),
    ("/v2/systemsharedmemory/status", Route.SYSTEM_SHARED_MEMORY_STATUS, "", ""),
    ("/v2/systemsharedmemory/region/r/status", Route.SYSTEM_SHARED_MEMORY_STATUS, "", ""),
    ("/v2/systemsharedmemory/region/r/register", Route.SYSTEM_SHARED_MEMORY_REGISTER, "", ""),
    ("/v2/systemsharedmemory/unregister", Route.SYSTEM_SHARED_MEMORY_UNREGISTER, "", ""),
    ("/v2/systemsharedmemory/region/r/unregister", Route.SYSTEM_SHARED_MEMORY_UNREGISTER, "", ""),
    ("/v2/cudasharedmemory/status", Route.CUDA_SHARED_MEMORY_STATUS, "", ""),
    ("/v2/cudasharedmemory/region/r/register", Route.CUDA_SHARED_MEMORY_REGISTER, "", ""),
    ("/v2/cudasharedmemory/region/r/unregister", Route.CUDA_SHARED_MEMORY_UNREGISTER, "", ""),
    # FH-05
    ("/v2/models/team%2Fner/infer", Route.MODEL_INFER, "team/ner", ""),
    ("/v2/models/team%252Fner/infer", Route.MODEL_INFER, "team%2Fner", ""),
    ("/v2/models/m%256fdel/infer", Route.MODEL_INFER, "m%6fdel", ""),
    ("/v2/models/m%6fdel/infer", Route.MODEL_INFER, "model", ""),
    ("/v2/models/yolo.v5/versions/2/infer", Route.MODEL_INFER, "yolo.v5", "2"),
    ("/v2/models/%C3%BCbung/infer", Route.MODEL_INFER, "übung", ""),
    ("/v2/models/a%20b/infer", Route.MODEL_INFER, "a b", ""),
    ("/v2/models/a+b/infer", Route.MODEL_INFER, "a+b", ""),
    ("/v2/models/.../infer", Route.MODEL_INFER, "...", ""),
    ("/v2/models/m/versions/%32/infer", Route.MODEL_INFER, "m", "2"),
]


@pytest.mark.parametrize(("path", "route", "model", "version"), TABLE)
def test_a_path_names_its_route_with_and_without_a_query(path: str, route: Route, model: str, version: str) -> None:
    for query in ("", "?", "?a=/v2/health/live&b=%zz"):
        match = PathMatcher().match((path + query).encode())
        assert (match.result, match.route) == (PathResult.MATCHED, route)
        assert (match.model, match.version) == (model, version)
        assert match.reason == ""


def test_every_route_is_in_the_table() -> None:
    assert {row[1] for row in TABLE} >= set(Route) - {Route.CUDA_SHARED_MEMORY_UNREGISTER}


def test_repository_and_region_are_read() -> None:
    assert match_path(b"/v2/repository/a%2Fb/models/m/load").repository == "a/b"
    assert match_path(b"/v2/repository/models/index").repository == "models"
    assert match_path(b"/v2/systemsharedmemory/region/r%20s/status").region == "r s"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "*",
        "v2",
        "/",
        "/v2/",
        "//v2",
        "/V2",
        "/v2/health",
        "/v2/health/live/",
        "/v2/health//live",
        "//v2/models/yolo.v5/infer",
        "/v2/models",
        "/v2/models/",
        "/v2/models//infer",
        "/v2/models/yolo.v5/infer/",
        "/v2/models/yolo.v5//infer",
        "/v2/models/team/ner/infer",
        "/v2/models/m/versions",
        "/v2/models/m/versions/1/",
        "/v2/models/m/versions/1/versions/1/infer",
        "/v2/models/m/versions/1/trace/setting",
        "/v2/models/m/versions/latest/nonsense",
        "/v2/models/m/INFER",
        "/v2/models/m/%69nfer",
        "/%76%32/health/live",
        "/v2%2Fhealth%2Flive",
        "/v2/systemsharedmemory/register",
        "/v2/systemsharedmemory/region//status",
        "/v2/repository//index",
        "/metrics",
        "/" * 5000,
        "/v2" + "/a" * 4000,
    ],
)
def test_these_paths_are_no_routes(path: str) -> None:
    assert match_path(path.encode()) == PathMatch(PathResult.NOT_FOUND, reason="Not Found")


@pytest.mark.parametrize(
    "path",
    [
        b"/v2/models/../infer",
        b"/v2/models/./infer",
        b"/v2/models/%2e%2e/infer",
        b"/v2/models/.%2E/infer",
        b"/v2/models/%2e/infer",
        b"/v2/models/..%2Fm/infer",
        b"/v2/models/a%2F..%2Fm/infer",
        b"/v2/models/m/versions/%2e%2e/infer",
        b"/v2/../v2/health/live",
        b"/v2/health/./live",
        b"/../nowhere",
        b"/v2/models/x%00y/infer",
        b"/v2/models/x%0Ay/infer",
        b"/v2/models/x%7Fy/infer",
        b"/v2/models/x%C2%85y/infer",
        b"/v2/models/x\x1fy/infer",
        b"/v2/models/m%/infer",
        b"/v2/models/m%2/infer",
        b"/v2/models/m%zz/infer",
        b"/v2/models/m%u0041/infer",
        b"/v2/models/%FF/infer",
        b"/v2/models/%C0%AF/infer",
        b"/v2/models/%C3/infer",
        b"/v2/models/%ED%A0%80/infer",
        b"/v2/models/\xc3\xbc/infer",
        b"/v2/models/\xc3%BC/infer",
        b"/nowhere/%zz",
    ],
)
def test_these_paths_are_bad_whatever_they_name(path: bytes) -> None:
    match = match_path(path)

    assert match.result is PathResult.BAD_PATH
    assert match.route is None
    assert match.model == match.version == ""
    assert match.reason


@pytest.mark.parametrize(
    "version",
    [
        *("latest", "", "01", "00", "-1", "+1", "1.0", "1e3", "0x1", "1_0", "%201", "1%20", "1%2F2", "%D9%A1"),
        *("9223372036854775808", "99999999999999999999", "9" * 5000),
    ],
)
def test_a_version_that_is_none_is_named_with_its_route_and_model(version: str) -> None:
    match = match_path(f"/v2/models/yolo.v5/versions/{version}/infer".encode())

    assert (match.result, match.route, match.model) == (PathResult.BAD_VERSION, Route.MODEL_INFER, "yolo.v5")
    assert match.version[:64] in match.reason
    assert len(match.reason) < 200


@pytest.mark.parametrize("version", ["0", "1", "10", "9223372036854775807"])
def test_these_are_versions(version: str) -> None:
    assert is_version(version)


def test_methods_are_those_of_triton_and_head_is_none() -> None:
    assert Route.MODEL_INFER.methods == {b"POST"}
    assert Route.MODEL_INFER.allow == b"POST"
    assert Route.SERVER_METADATA.methods == {b"GET"}
    assert Route.TRACE_SETTING.allow == b"GET, POST"
    assert all(route.methods <= {b"GET", b"POST"} for route in Route)


def test_templates_are_distinct_labels() -> None:
    templates = {route.template for route in Route}
    assert len(templates) == len(Route)
    assert Route.MODEL_INFER.template == "/v2/models/{model}[/versions/{version}]/infer"


def test_a_path_in_use_is_remembered_while_hostile_ones_come_and_go() -> None:
    matcher = PathMatcher(memo_max=8)
    kept = matcher.match(b"/v2/models/hot/infer?first")
    for number in range(1000):
        matcher.match(f"/v2/models/m{number}/infer".encode())
        assert matcher.match(b"/v2/models/hot/infer") is kept
        assert len(matcher) <= 16


def test_what_matches_nothing_or_is_long_is_not_remembered() -> None:
    matcher = PathMatcher(memo_max=8)
    for path in ("/nowhere", "/v2/models/%00/infer", "/v2/models/m/versions/x/infer", f"/v2/models/{'m' * 300}/infer"):
        first = matcher.match(path.encode())
        assert matcher.match(path.encode()) == first
    assert len(matcher) == 0


def test_a_memo_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="memo_max is 0"):
        PathMatcher(memo_max=0)


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=20).filter(
    lambda name: not {".", ".."} & set(name.split("/"))
)


@settings(max_examples=200, deadline=None)
@given(NAMES)
def test_any_name_comes_back_from_its_one_escaped_form(name: str) -> None:
    path = f"/v2/models/{quote(name, safe='')}/versions/7/infer".encode()

    match = PathMatcher().match(path)

    assert (match.result, match.model, match.version) == (PathResult.MATCHED, name, "7")


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=60),
        st.lists(
            st.sampled_from([b"v2", b"models", b"m", b"..", b"%2e", b"%2F", b"%", b"versions", b"1", b"infer", b""]),
            max_size=8,
        ).map(lambda parts: b"/" + b"/".join(parts)),
    )
)
def test_no_path_breaks_the_matcher_and_a_match_is_always_clean(path: bytes) -> None:
    match = PathMatcher().match(path)

    for name in (match.model, match.version, match.repository, match.region):
        assert not {".", ".."} & set(name.split("/"))
        assert name.isprintable() or not any(ord(letter) < 0x20 or 0x7F <= ord(letter) <= 0x9F for letter in name)
    assert (match.route is None) == (match.result in (PathResult.NOT_FOUND, PathResult.BAD_PATH))
