"""Model statistics and the repository index: Triton's messages, and how those of several servers become one's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import IndexEntry
from gateway.wire.kserve import repository as index
from gateway.wire.kserve import statistics as stats

UINT64_MAX = (1 << 64) - 1
counts = st.integers(0, 1 << 62)
durations = st.builds(lambda count, ns: {"count": count, "ns": ns}, counts, counts)


def figures(names: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(dict.fromkeys(names, durations))


rows = st.builds(
    pb.ModelStatistics,
    name=st.just("m"),
    version=st.just("1"),
    last_inference=counts,
    inference_count=counts,
    execution_count=counts,
    inference_stats=figures(stats.INFERENCE),
    batch_stats=st.dictionaries(st.integers(1, 64), figures(stats.BATCH), max_size=4).map(
        lambda found: [{"batch_size": size, **found[size]} for size in sorted(found)]
    ),
    memory_usage=st.dictionaries(st.tuples(st.sampled_from(["CPU", "GPU"]), st.integers(0, 3)), counts, max_size=3).map(
        lambda found: [{"type": kind, "id": number, "byte_size": found[kind, number]} for kind, number in sorted(found)]
    ),
    response_stats=st.dictionaries(st.sampled_from(["0", "1", "2", "10"]), figures(stats.RESPONSE), max_size=4),
)


def read(row: pb.ModelStatistics) -> stats.ModelStatistics:
    return stats.decode_statistics(row.SerializeToString())


def written(*rows: stats.ModelStatistics) -> pb.ModelStatisticsResponse:
    return pb.ModelStatisticsResponse.FromString(b"".join(stats.statistics_to_protobuf(each) for each in rows))


def document(*rows: stats.ModelStatistics) -> Any:
    return json.loads(stats.statistics_document(stats.statistics_to_json(each) for each in rows))


@given(rows)
def test_statistics_go_through_unchanged(row: pb.ModelStatistics) -> None:
    assert list(written(read(row)).model_stats) == [row]


def test_zero_durations_are_there_as_triton_sends_them() -> None:
    (row,) = written(stats.ModelStatistics("m", "1")).model_stats
    assert all(row.inference_stats.HasField(name) for name in stats.INFERENCE)
    assert document(stats.ModelStatistics("m", "1")) == {
        "model_stats": [
            {
                "name": "m",
                "version": "1",
                "last_inference": 0,
                "inference_count": 0,
                "execution_count": 0,
                "inference_stats": {name: {"count": 0, "ns": 0} for name in stats.INFERENCE},
                "response_stats": {},
                "batch_stats": [],
                "memory_usage": [],
            }
        ]
    }


@given(rows)
def test_the_json_holds_what_the_protobuf_holds(row: pb.ModelStatistics) -> None:
    parsed = json_format.ParseDict(document(read(row), read(row)), pb.ModelStatisticsResponse())
    assert parsed == pb.ModelStatisticsResponse(model_stats=[row, row])


def test_responses_are_in_the_order_of_their_places() -> None:
    row = pb.ModelStatistics(name="m", version="1", response_stats={place: {} for place in ("10", "2", "x", "0")})
    assert list(document(read(row))["model_stats"][0]["response_stats"]) == ["0", "2", "10", "x"]
    assert document() == {"model_stats": []}


@given(rows, rows, rows)
@settings(max_examples=50)
def test_merging_adds_counts_and_takes_the_latest_time_in_any_order(
    a: pb.ModelStatistics, b: pb.ModelStatistics, c: pb.ModelStatistics
) -> None:
    one, other, third = read(a), read(b), read(c)
    total = one.plus(other)
    assert total.inference_count == a.inference_count + b.inference_count
    assert total.execution_count == a.execution_count + b.execution_count
    assert total.last_inference_ms == max(a.last_inference, b.last_inference)
    for name in stats.INFERENCE:
        left, right = getattr(a.inference_stats, name), getattr(b.inference_stats, name)
        assert total.inference[stats.INFERENCE.index(name)] == (left.count + right.count, left.ns + right.ns)
    sizes = {each.batch_size for each in (*a.batch_stats, *b.batch_stats)}
    assert set(total.batches) == sizes
    for size in sizes:
        found = [each for each in (*a.batch_stats, *b.batch_stats) if each.batch_size == size]
        assert total.batches[size][1][1] == sum(each.compute_infer.ns for each in found)
    assert sum(total.memory.values()) == sum(each.byte_size for each in (*a.memory_usage, *b.memory_usage))
    assert set(total.responses) == {*a.response_stats, *b.response_stats}
    assert total == other.plus(one)
    assert total.plus(third) == one.plus(other.plus(third))
    assert total.continues(one)
    assert total.continues(other)


def test_sums_stop_at_what_the_field_can_hold() -> None:
    row = read(pb.ModelStatistics(inference_count=UINT64_MAX, memory_usage=[{"type": "GPU", "byte_size": UINT64_MAX}]))
    (total,) = written(row.plus(row)).model_stats
    assert (total.inference_count, total.memory_usage[0].byte_size) == (UINT64_MAX, UINT64_MAX)
    (total,) = document(row.plus(row))["model_stats"]
    assert (total["inference_count"], total["memory_usage"][0]["byte_size"]) == (UINT64_MAX, UINT64_MAX)


def test_unusual_spellings_of_protobuf_are_read_too() -> None:
    """Tags and lengths longer than need be, fields in another order, unknown ones between."""
    success = b"\x90\x00\x09" + b"\x88\x00\x05" + b"\x1a\x01x"
    spelled = b"\x8a\x00" + bytes((len(success),)) + success
    assert pb.InferStatistics.FromString(spelled).success.count == 5
    inference = b"\x32" + bytes((len(spelled),)) + spelled
    batch = b"\x12\x82\x00\x08\x03" + b"\x08\x07"
    row = inference + b"\x3a" + bytes((len(batch),)) + batch
    assert pb.ModelStatistics.FromString(row).batch_stats[0].batch_size == 7
    decoded = stats.decode_statistics(row)
    assert decoded.inference[0] == (5, 9)
    assert decoded.batches[7][0] == (3, 0)


@pytest.mark.parametrize(
    "later",
    [
        pb.ModelStatistics(inference_count=4, execution_count=2, inference_stats={"success": {"count": 3, "ns": 10}}),
        pb.ModelStatistics(inference_count=5, execution_count=1, inference_stats={"success": {"count": 3, "ns": 10}}),
        pb.ModelStatistics(inference_count=5, execution_count=2, inference_stats={"success": {"count": 2, "ns": 10}}),
        pb.ModelStatistics(inference_count=5, execution_count=2, inference_stats={"success": {"count": 3, "ns": 9}}),
        pb.ModelStatistics(
            inference_count=9, execution_count=9, inference_stats={"success": {"count": 9, "ns": 99}}, batch_stats=[]
        ),
    ],
)
def test_counters_that_went_back_are_seen(later: pb.ModelStatistics) -> None:
    earlier = pb.ModelStatistics(
        last_inference=7,
        inference_count=5,
        execution_count=2,
        inference_stats={"success": {"count": 3, "ns": 10}},
        batch_stats=[{"batch_size": 1}],
    )
    assert read(earlier).continues(read(earlier))
    assert not read(later).continues(read(earlier))


def test_a_whole_answer_is_split_by_model_and_version_without_reading_the_rest() -> None:
    response = pb.ModelStatisticsResponse()
    for name, version in (("a", "1"), ("a", "2"), ("b", "1")):
        response.model_stats.add(name=name, version=version, inference_count=3)
    parts = stats.split_statistics(response.SerializeToString())
    assert list(parts) == [("a", "1"), ("a", "2"), ("b", "1")]
    assert stats.decode_statistics(parts["a", "2"]).inference_count == 3


def test_fields_of_newer_servers_are_dropped() -> None:
    row = pb.ModelStatistics(name="m", version="1", inference_count=3)
    newer = row.SerializeToString() + b"\xa2\x06\x01x" + b"\xa8\x06\x05"
    (kept,) = written(stats.decode_statistics(newer)).model_stats
    assert kept.inference_count == 3


@pytest.mark.parametrize("junk", [b"\x0a\x05a", b"\x0d\x00\x00\x00\x00", b"\xff", b"\x08\x01"])
def test_a_replicas_junk_is_its_own_fault(junk: bytes) -> None:
    for read_it in (stats.split_statistics, stats.decode_statistics, index.decode_index):
        with pytest.raises(GatewayError) as caught:
            read_it(junk)
        assert caught.value.reason is Reason.UPSTREAM_BROKEN


# --- the repository index -------------------------------------------------------------------------------------------


def test_the_index_is_read_and_written() -> None:
    message = pb.RepositoryIndexResponse()
    message.models.add(name="never loaded")
    message.models.add(name="m", version="1", state="UNAVAILABLE", reason="unloaded")
    entries = index.decode_index(message.SerializeToString())
    assert entries == (IndexEntry("never loaded", "", "", ""), IndexEntry("m", "1", "UNAVAILABLE", "unloaded"))
    assert pb.RepositoryIndexResponse.FromString(index.index_to_protobuf(entries)) == message
    assert json.loads(index.index_to_json(message.SerializeToString())) == [
        {"name": "never loaded"},
        {"name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"},
    ]


@pytest.mark.parametrize("ready", [True, False])
def test_the_question_is_read_in_both_spellings(ready: bool) -> None:
    assert index.decode_index_request(pb.RepositoryIndexRequest(ready=ready).SerializeToString()) is ready
    assert index.decode_index_body(json.dumps({"ready": ready}).encode()) is ready


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"null", b'{"other":1}'])
def test_what_says_nothing_about_readiness_asks_for_everything(body: bytes) -> None:
    assert index.decode_index_body(body) is False


@pytest.mark.parametrize("body", [b"{", b" ", b'{"ready":1}', b'{"ready":null}', b'{"ready":"true"}', b"\xff"])
def test_a_question_that_cannot_be_read_is_the_callers_fault(body: bytes) -> None:
    with pytest.raises(GatewayError) as caught:
        index.decode_index_body(body)
    assert (caught.value.reason, caught.value.code) == (Reason.BAD_REQUEST, Code.INVALID_ARGUMENT)


def test_a_named_repository_is_refused_and_junk_is_the_callers_fault() -> None:
    with pytest.raises(GatewayError, match="repository_name") as caught:
        index.decode_index_request(pb.RepositoryIndexRequest(repository_name="r").SerializeToString())
    assert caught.value.reason is Reason.UNSUPPORTED
    with pytest.raises(GatewayError, match="RepositoryIndexRequest") as caught:
        index.decode_index_request(b"\x0a\x05a")
    assert caught.value.reason is Reason.BAD_REQUEST


def ready(version: str = "1") -> IndexEntry:
    return IndexEntry("m", version, "READY", "")


def bad(reason: str, version: str = "1", state: str = "UNAVAILABLE") -> IndexEntry:
    return IndexEntry("m", version, state, reason)


def test_what_all_replicas_say_is_said_in_tritons_words() -> None:
    assert index.merge_index("m", [[ready("1"), ready("10")], [ready("10"), ready("1")]]) == [ready("1"), ready("10")]
    assert index.merge_index("m", [[bad("unloaded")]] * 3) == [bad("unloaded")]
    assert index.merge_index("m", [[IndexEntry("m", "", "", "")]] * 2) == [IndexEntry("m", "", "", "")]
    assert index.merge_index("m", [[], []]) == []


def test_versions_ascend_as_numbers() -> None:
    merged = index.merge_index("m", [[ready("10"), ready("9")], [ready("9"), ready("10"), ready("2")]])
    assert [entry.version for entry in merged] == ["2", "9", "10"]


def test_a_version_is_as_good_as_on_its_best_replica_and_the_reason_tells_of_the_others() -> None:
    (line,) = index.merge_index("m", [[bad("Internal: no such file /opt/models/m/1")], [ready()], [ready()]])
    assert line.state == "READY"
    assert line.reason == "of 3 replicas: READY on 2; UNAVAILABLE on 1: Internal: no such file (path)"
    for better, worse in zip(index.STATES, index.STATES[1:], strict=False):
        (line,) = index.merge_index("m", [[bad("", state=worse)], [bad("", state=better)]])
        assert line.state == better


def test_replicas_without_the_version_and_silent_ones_are_counted() -> None:
    (line,) = index.merge_index("m", [[ready()], [], [IndexEntry("m", "", "", "")]], silent=2)
    assert line == IndexEntry("m", "1", "READY", "of 5 replicas: READY on 1; not there on 2; no answer from 2")


def test_reasons_hold_no_addresses_and_are_bounded() -> None:
    entries = [[bad(f"connection to 10.0.0.{number}:8001 failed {'x' * number}")] for number in range(40)]
    (line,) = index.merge_index("m", entries)
    assert "10.0.0" not in line.reason
    assert line.reason.count("UNAVAILABLE") == index.REASONS_MAX
    assert line.reason.endswith("; 36 more kinds")
