"""For each row of the table of deviations: the differences that it explains, by what was asked and what was answered.

A function here, or in the two modules beside it, sees one comparison and returns the aspects that its row accounts for;
nothing else may differ.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import json_format

from gateway.wire.http_path import is_version
from gateway.wire.kserve.metadata import REFUSED_EXTENSIONS, SERVER_NAME
from tests.support import differential_rows_connection, differential_rows_json
from tests.support.differential_compare import Comparison, read_json, response_type
from tests.support.differential_grpc import SERVICE, GrpcSent, infer_request
from tests.support.differential_row_kit import (
    ANSWER,
    CONNECTION,
    NOTHING,
    ROWS,
    Aspects,
    Json,
    entries,
    is_http,
    parameters_of,
    path_of,
    refused,
    row,
)

__all__ = ["CANNOT", "MODELS", "ROWS", "differential_rows_connection", "differential_rows_json"]

# --- every answer ------------------------------------------------------------------------------------------------


@row("more-headers")
def _more_headers(c: Comparison) -> Aspects:
    direct, through = c.differences.get("more", (frozenset(), frozenset()))
    return (
        frozenset({"more"})
        if not direct and all(name.startswith("x-") or name in _LISTED for name in through)
        else NOTHING
    )


_LISTED = frozenset({"retry-after", "allow", "grpc-retry-pushback-ms"})


@row("error-type")
def _error_type(c: Comparison) -> Aspects:
    errors = is_http(c) and c.direct.status >= 400 and c.through.status >= 400
    return frozenset({"type"}) if errors and c.through.header("content-type") == "application/json" else NOTHING


@row("error-text")
def _error_text(c: Comparison) -> Aspects:
    direct, through = c.differences.get("text", (None, None))
    if not direct or not through:
        return NOTHING
    first, *more = direct.splitlines()
    cut = through == first and more
    cleaned = any(word in through and word not in first for word in ("(path)", "(address)"))
    return frozenset({"text"}) if cut or cleaned else NOTHING


# --- what is addressed -------------------------------------------------------------------------------------------


@row("path")
def _path(c: Comparison) -> Aspects:
    path = path_of(c)
    if "%" in path or any(part in (".", "..") for part in path.split("/")):
        return ANSWER if c.direct.status in (400, 404) else NOTHING
    return CONNECTION if refused(c, 400) and is_http(c) and ("#" in path or not path.isascii()) else NOTHING


@row("version-form")
def _version_form(c: Comparison) -> Aspects:
    if is_http(c):
        found = re.search(r"/versions/([^/]*)(/|$)", path_of(c))
        return ANSWER if found and not is_version(found[1]) and refused(c, 400) else NOTHING
    version = asked_of(c).model_version
    if not version or is_version(version):
        return NOTHING
    return ANSWER if c.through.code in ("INVALID_ARGUMENT", "NOT_FOUND") else NOTHING


def asked_of(c: Comparison) -> Any:
    """A gRPC request's model and version: all requests that name one have both in the same fields."""
    message = infer_request(())
    message.Clear()
    if isinstance(c.sent, GrpcSent):
        try:
            message.ParseFromString(c.sent.messages[0])
        except Exception:  # whatever protobuf's implementation raises for bytes that are no message
            message.Clear()
    return message


@row("sequence-nul")
def _sequence_nul(c: Comparison) -> Aspects:
    told = str(c.through.error if is_http(c) else c.through.text)
    if "must not hold a NUL" not in told or not refused(c, 400, "INVALID_ARGUMENT"):
        return NOTHING
    name = parameters_of(c.document).get("sequence_id") or asked_of(c).parameters["sequence_id"].string_param
    return ANSWER if "\0" in name else NOTHING


@row("no-replica")
def _no_replica(c: Comparison) -> Aspects:
    return ANSWER if c.through.reason == "no_replica" and refused(c, 503, "UNAVAILABLE") else NOTHING


@row("fault-order")
def _fault_order(c: Comparison) -> Aspects:
    """Both refuse it, one of them because model or version is unknown, which it is."""
    if is_http(c):
        found = re.fullmatch(r"/v2/models/([^/]+)(?:/versions/([0-9]+))?(/.*)?", path_of(c))
        refusals = (c.direct.status, c.through.status) if found and found[3] != "/ready" else (0, 0)
        named = (found[1], found[2] or "") if found else ("", "")
        unknown, wrong = (404, 503), (400, 413, 500, 501)
    else:
        asked = asked_of(c)
        refusals, named = (c.direct.code, c.through.code), (asked.model_name, asked.model_version)
        unknown, wrong = ("NOT_FOUND", "UNAVAILABLE"), ("INVALID_ARGUMENT", "INTERNAL", "UNIMPLEMENTED")  # type: ignore[assignment]
        if c.through.text.startswith("unable to parse"):
            return NOTHING  # `grpc-strict`
    unreadable = not is_http(c) and c.direct.text == "Unable to parse request"
    is_unknown = unreadable or named[0] not in MODELS or named[1] not in ("", "1")
    either = (refusals[0] in wrong and refusals[1] in unknown) or (refusals[1] in wrong and refusals[0] in unknown)
    if unreadable and refusals[1] in ("INVALID_ARGUMENT", "UNIMPLEMENTED"):
        return frozenset({"code"})  # for the parameters of a sequence
    return frozenset({"status", "code"}) if either and is_unknown else NOTHING


MODELS = ("identity", "mixed", "ranker", "embedder", "streamer", "accel")
"""Those that both sides know, each in version 1."""


@row("unknown-model-ready")
def _unknown_model_ready(c: Comparison) -> Aspects:
    asked = path_of(c).endswith("/ready") and c.direct.status == 400
    return frozenset({"status", "error"}) if asked and refused(c, 404) else NOTHING


@row("extensions")
def _extensions(c: Comparison) -> Aspects:
    if path_of(c) == "/v2" and c.direct.status == c.through.status == 200:
        theirs, ours = (read_json(each.body) for each in (c.direct, c.through))
        return frozenset({"document"}) if _fewer_extensions(theirs, ours) else NOTHING
    if not is_http(c) and c.sent.method == SERVICE + "ServerMetadata" and "messages" in c.differences:
        theirs, ours = (_grpc_document(c.sent, each) for each in (c.direct, c.through))
        return frozenset({"messages"}) if _fewer_extensions(theirs, ours) else NOTHING
    return NOTHING


def _fewer_extensions(theirs: Json, ours: Json) -> bool:
    gone = [name for name in theirs["extensions"] if name not in ours["extensions"]]
    same = {**theirs, "extensions": 0, "name": SERVER_NAME} == {**ours, "extensions": 0}
    return set(gone) == REFUSED_EXTENSIONS and same


def _grpc_document(sent: GrpcSent, answer: Any) -> Json:
    kind = response_type(sent)
    assert kind is not None
    message = kind.FromString(answer.messages[0])
    found: Json = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return found


# --- what is not served, and what is made of many ----------------------------------------------------------------


@row("shared-memory")
def _shared_memory(c: Comparison) -> Aspects:
    said = any(
        "shared_memory_region" in parameters_of(each)
        for kind in ("inputs", "outputs")
        for each in entries(c.document, kind)
    )
    said = said or "sharedmemory" in path_of(c)
    if not is_http(c):
        said = "SharedMemory" in c.sent.method or any(b"shared_memory_region" in message for message in c.sent.messages)
    return ANSWER if said and refused(c, 501, "UNIMPLEMENTED") and c.through.reason == "unsupported" else NOTHING


_SETTING_PATHS = re.compile(
    r"/v2/(models/[^/]+/)?(trace/setting|logging)|/v2/repository(/[^/]+)?/models/[^/]+/(un)?load"
)
_SETTING_METHODS = re.compile(r".*/(TraceSetting|LogSettings|RepositoryModel(Load|Unload))")


@row("server-settings")
def _server_settings(c: Comparison) -> Aspects:
    found = _SETTING_PATHS.fullmatch(path_of(c)) if is_http(c) else _SETTING_METHODS.fullmatch(c.sent.method)
    return ANSWER if found and refused(c, 501, "UNIMPLEMENTED") and c.through.reason == "unsupported" else NOTHING


@row("repository-name")
def _repository_name(c: Comparison) -> Aspects:
    return ANSWER if re.fullmatch(r"/v2/repository/[^/]+/index", path_of(c)) and refused(c, 501) else NOTHING


@row("repository-index")
def _repository_index(c: Comparison) -> Aspects:
    """Fewer models, each as Triton has it."""
    if path_of(c) == "/v2/repository/index" and c.direct.status == c.through.status == 200:
        theirs, ours, aspect = read_json(c.direct.body), read_json(c.through.body), "document"
    elif not is_http(c) and c.sent.method == SERVICE + "RepositoryIndex" and c.direct.code == c.through.code == "OK":
        theirs, ours = (_grpc_document(c.sent, answer)["models"] for answer in (c.direct, c.through))
        aspect = "messages"
    else:
        return NOTHING
    return frozenset({aspect}) if all(line in theirs for line in ours) and len(ours) < len(theirs) else NOTHING


@row("statistics")
def _statistics(c: Comparison) -> Aspects:
    """Counts go on between the two questions; what is counted is the same, of no more models."""
    if path_of(c).endswith("/stats") and c.direct.status == c.through.status == 200:
        both, aspect = [read_json(answer.body)["model_stats"] for answer in (c.direct, c.through)], "document"
    elif not is_http(c) and c.sent.method == SERVICE + "ModelStatistics" and c.direct.code == c.through.code == "OK":
        both, aspect = [_grpc_document(c.sent, answer)["model_stats"] for answer in (c.direct, c.through)], "messages"
    else:
        return NOTHING
    theirs, ours = ({(each["name"], each["version"]): set(each) for each in rows} for rows in both)
    same = all(theirs.get(name) == members for name, members in ours.items())
    return frozenset({aspect}) if same and len(ours) <= len(theirs) else NOTHING


CANNOT: dict[str, tuple[str, str]] = {
    "classified-bytes": (
        "it would end the Triton that the suite shares",
        "tests/unit/test_layers_outer.py::test_classes_of_an_output_of_texts_are_refused",
    ),
    "sequence-owner": (
        "the suite's callers are one tenant",
        "tests/unit/test_decide_sequences.py::test_nobody_gets_into_another_tenant_s_sequence_and_a_lost_one_is_anybody_s_to_begin",
    ),
    "sequence-lost": (
        "a replica must die",
        "tests/field/test_fh07_sequences.py::test_when_a_replica_is_killed_exactly_its_sequences_are_lost_until_they_are_started_again",
    ),
    "sequence-order": (
        "the order in which calls overtake one another is chance",
        "tests/field/test_fh07_sequences.py::test_the_calls_of_one_sequence_run_in_the_order_in_which_they_came",
    ),
    "stream-request-ids": (
        "only the model sees the difference",
        "tests/unit/test_fleet_streams.py::test_calls_with_the_same_id_are_told_apart_and_get_their_id_back",
    ),
    "stream-true-status": (
        "a model's error under this metadata may end the Triton that the suite shares",
        "tests/integration/test_streams.py::test_a_model_s_error_ends_the_stream_where_the_caller_wants_true_statuses",
    ),
    "stream-refusals": (
        "a bound far above what a test may send at once",
        "tests/unit/test_edge_grpc_stream.py::test_no_more_calls_are_out_than_the_policy_allows",
    ),
    "stream-limits": (
        "a limit that the policies of the suite do not set",
        "tests/unit/test_layers_streams.py::test_each_limit_ends_the_stream_with_its_own_words",
    ),
    "queue-timeout": (
        "it needs a Triton with a queue policy, and a full batcher",
        "tests/integration/test_fleet_on_triton.py::test_a_full_queue_and_a_wait_that_was_too_long_are_overload",
    ),
    "queue-full": (
        "it needs a Triton with a queue policy, and a full queue",
        "tests/integration/test_fleet_on_triton.py::test_a_full_queue_and_a_wait_that_was_too_long_are_overload",
    ),
    "tenant-quota": (
        "a limit that the policies of the suite do not set",
        "tests/unit/test_layers_quota.py::test_over_its_rate_a_tenant_is_told_when_there_is_room_and_then_served",
    ),
    "answer-too-large": (
        "a limit that the policies of the suite do not set",
        "tests/integration/test_large_tensors.py::test_an_answer_over_the_pools_message_names_the_limit_and_the_replica_stays_in_traffic",
    ),
    "server-ready": (
        "a version must fail to load, which makes the whole server unready",
        "tests/integration/test_fleet_on_triton.py::test_a_failed_rollout_makes_the_server_unready_and_changes_nothing_else",
    ),
    "header-names": (
        "only the model sees the difference, if its server forwards headers",
        "tests/unit/test_edge_headers.py::test_what_metadata_cannot_carry_is_dropped_and_counted",
    ),
    "grpc-encoding": (
        "the library that sends the suite's calls knows no other encodings",
        "tests/field/test_hostile_grpc.py::test_hostile_frames_leave_nothing_behind_and_others_are_served",
    ),
    "grpc-requests": (
        "the library that sends the suite's calls sends no such requests",
        "tests/unit/test_grpc_port_requests.py::test_who_does_not_speak_grpc_is_told_in_plain_http",
    ),
    "generate-disconnect": (
        "it is seen in the model's log only",
        "tests/integration/test_generate.py::test_a_client_that_leaves_a_silent_model_ends_its_work_too",
    ),
}
"""Rows that no comparison of two answers shows: why, and the test that shows them instead."""
