"""Client-facing headers, in and out, whatever the protocol."""

from __future__ import annotations

import random
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.call import Attempt
from gateway.core.errors import GatewayError, Reason
from gateway.core.header_names import NEVER_FORWARDED
from gateway.edge.headers import (
    FORWARD_BYTES_MAX,
    NOT_YET,
    ClientHeaders,
    HeaderReader,
    header_text,
    response_headers,
    trace_context,
)
from tests.support.calls import make_call

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def read(*pairs: tuple[str, str], forward: tuple[str, ...] = ("*",)) -> ClientHeaders:
    return HeaderReader(forward, random.Random(3)).read(pairs)


def fault(*pairs: tuple[str, str]) -> GatewayError:
    found = read(*pairs).fault
    assert found is not None
    return found


def test_a_request_id_is_kept_and_a_missing_one_is_made() -> None:
    assert read(("x-request-id", "order 66/abc")).request_id == "order 66/abc"
    reader = HeaderReader(("*",), random.Random(3))
    first, second = reader.read(()).request_id, reader.read((("x-request-id", ""),)).request_id
    assert first != second
    assert all(len(each) == 32 and int(each, 16) >= 0 for each in (first, second))


@pytest.mark.parametrize("value", ["a" * 129, "tab\there", "nul\x00", "bell\x07", "zwölf", "line\nbreak"])
def test_a_bad_request_id_is_refused_under_an_id_of_ours(value: str) -> None:
    found = read(("x-request-id", value))
    assert found.fault is not None
    assert found.fault.reason is Reason.BAD_REQUEST
    assert len(found.request_id) == 32


@pytest.mark.parametrize(("value", "seconds"), [("1", 0.001), ("1500", 1.5), ("86400000", 86400.0), ("0007", 0.007)])
def test_the_timeout_is_whole_milliseconds(value: str, seconds: float) -> None:
    assert read(("x-request-timeout-ms", value)).timeout_s == seconds


@pytest.mark.parametrize(
    "value", ["0", "-1", "+5", "1.5", "1e3", " 5", "5 ", "", "abc", "86400001", "9" * 400, "٥", "0x10", "1_000", "inf"]
)
def test_any_other_timeout_is_refused(value: str) -> None:
    assert fault(("x-request-timeout-ms", value)).reason is Reason.BAD_REQUEST


def test_a_key_comes_from_either_header() -> None:
    assert read(("x-api-key", "k1")).credentials.secret == "k1"
    assert read(("authorization", "Bearer k1")).credentials.secret == "k1"
    assert read(("authorization", "bearer  k1 ")).credentials.secret == "k1"
    assert read(("authorization", "Bearer k1"), ("x-api-key", "k1")).credentials.secret == "k1"
    assert read(("authorization", "Basic dXNlcg==")).credentials.secret is None
    assert read(("authorization", "Basic dXNlcg=="), ("x-api-key", "k1")).credentials.secret == "k1"
    assert read(("x-api-key", "")).credentials.secret is None


def test_two_different_keys_are_refused_and_not_told() -> None:
    for pairs in (
        (("authorization", "Bearer secret1"), ("x-api-key", "secret2")),
        (("x-api-key", "secret1"), ("x-api-key", "secret2")),
    ):
        found = fault(*pairs)
        assert found.reason is Reason.BAD_REQUEST
        assert "secret" not in found.message


def test_explain_is_one_or_zero() -> None:
    assert read(("x-sluice-explain", "1")).explain
    assert not read(("x-sluice-explain", "0")).explain
    assert fault(("x-sluice-explain", "yes")).reason is Reason.BAD_REQUEST


@pytest.mark.parametrize(
    ("word", "rank"), [("critical_plus", 0), ("critical", 1), ("sheddable_plus", 2), ("sheddable", 3)]
)
def test_a_class_is_one_of_four_words(word: str, rank: int) -> None:
    assert read().priority is None
    assert read(("x-sluice-priority", word)).priority == rank
    assert read(("x-sluice-priority", word), ("x-sluice-priority", word)).priority == rank
    assert ("x-sluice-priority", word) not in read(("x-sluice-priority", word), forward=("*",)).metadata


@pytest.mark.parametrize("word", ["", "0", "1", "high", "CRITICAL", "critical ", "critical,sheddable"])
def test_another_class_is_refused_with_the_four_words(word: str) -> None:
    found = fault(("x-sluice-priority", word))
    assert found.reason is Reason.BAD_REQUEST
    assert found.message == "x-sluice-priority must be critical_plus, critical, sheddable_plus or sheddable"


def test_two_classes_are_refused() -> None:
    found = fault(("x-sluice-priority", "critical"), ("x-sluice-priority", "sheddable"))
    assert found.reason is Reason.BAD_REQUEST


@pytest.mark.parametrize("name", sorted(NOT_YET))
def test_wishes_of_later_layers_are_refused_by_name(name: str) -> None:
    found = fault((name, "1"))
    assert found.reason is Reason.UNSUPPORTED
    assert name in found.message


@pytest.mark.parametrize("name", ["x-request-id", "x-request-timeout-ms", "x-sluice-explain"])
def test_a_header_given_twice_with_different_values_is_refused(name: str) -> None:
    assert fault((name, "1"), (name, "0")).reason is Reason.BAD_REQUEST
    assert read((name, "1"), (name, "1")).fault is None


def test_what_is_forwarded_is_in_order_and_repeats_stay() -> None:
    found = read(("x-b", "1"), ("x-a", "2"), ("x-b", "3"), ("x-request-id", "r"))
    assert found.metadata == (("x-b", "1"), ("x-a", "2"), ("x-b", "3"), ("x-request-id", "r"))


@pytest.mark.parametrize(
    "name",
    [
        *sorted(NEVER_FORWARDED),
        "content-type",
        "content-length",
        "content-encoding",
        "proxy-foo",
        "x-sluice-anything",
        "grpc-timeout",
        ":path",
    ],
)
def test_what_is_the_connections_own_or_secret_is_never_forwarded(name: str) -> None:
    for forward in (("*",), (name,), (name[:2] + "*",)):
        assert read((name, "Bearer x"), forward=forward).metadata == ()


def test_headers_that_connection_names_are_not_forwarded() -> None:
    found = read(("connection", "close, X-Hop"), ("x-hop", "1"), ("x-end", "2"))
    assert found.metadata == (("x-end", "2"),)


def test_the_policy_chooses_by_name_and_prefix() -> None:
    pairs = (("x-tenant", "a"), ("x-shop-id", "b"), ("other", "c"))
    assert read(*pairs, forward=("X-Tenant",)).metadata == (("x-tenant", "a"),)
    assert read(*pairs, forward=("x-shop-*",)).metadata == (("x-shop-id", "b"),)
    assert read(*pairs, forward=()).metadata == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [("x-bin", "a\x00b"), ("x-a", "zwölf"), ("x-a", "tab\there"), ("x-a", ""), ("data-bin", "ok"), ("x(y)", "1")],
)
def test_what_metadata_cannot_carry_is_dropped_and_counted(name: str, value: str) -> None:
    found = read((name, value), ("x-good", "1"))
    assert found.fault is None
    assert found.metadata == (("x-good", "1"),)
    assert found.dropped == 1


def test_more_forwarded_headers_than_triton_takes_are_refused() -> None:
    found = fault(*((f"x-{number}", "v" * 1000) for number in range(FORWARD_BYTES_MAX // 1000)))
    assert found.reason is Reason.TOO_LARGE


@pytest.mark.parametrize("usual", [False, True])
def test_a_traces_state_goes_along_as_long_as_there_is_room_for_it(usual: bool) -> None:
    state = "a=" + "b" * 200
    for left, fits in ((300, True), (150, False)):
        long = ("x-long", "v" * (FORWARD_BYTES_MAX - left - len("x-long") - 32))
        pairs = (long, ("traceparent", TRACE), ("tracestate", state))
        found = read(*pairs)
        if usual:
            as_bytes = [(name.encode(), value.encode()) for name, value in pairs]
            found = HeaderReader(("*",), random.Random(3)).read_bytes(as_bytes)
        assert found.fault is None
        assert found.metadata == (pairs if fits else pairs[:2])


def test_a_valid_trace_context_goes_on_whatever_the_policy_forwards() -> None:
    found = read(("traceparent", TRACE), ("tracestate", "a=1"), ("tracestate", "b=2"), forward=())
    assert found.metadata == (("traceparent", TRACE), ("tracestate", "a=1,b=2"))


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "garbage",
        TRACE.upper(),
        TRACE + "-more",
        TRACE[:-1],
        "ff" + TRACE[2:],
        "00-" + "0" * 32 + TRACE[35:],
        TRACE[:36] + "0" * 16 + "-01",
        " " + TRACE,
        "01" + TRACE[2:] + "x",
        "01" + TRACE[2:] + "-ü",
        "01" + TRACE[2:] + "-" + "x" * 300,
    ],
)
def test_an_invalid_traceparent_is_dropped_with_its_state_and_is_no_error(parent: str) -> None:
    found = read(("traceparent", parent), ("tracestate", "a=1"), ("x-a", "1"))
    assert found.fault is None
    assert found.metadata == (("x-a", "1"),)


def test_a_longer_traceparent_of_a_later_version_is_valid() -> None:
    later = "01" + TRACE[2:] + "-what-comes"
    assert trace_context([later], []) == (("traceparent", later),)


def test_two_traceparents_are_none() -> None:
    assert trace_context([TRACE, TRACE], []) == ()


@pytest.mark.parametrize(
    "state",
    [
        "novalue",
        "a=",
        "=1",
        "A=1",
        "a=ü",
        "a=1;b=2=3",
        ",".join(f"k{n}=v" for n in range(33)),
        ",",
        "a=\t1",
        "k=" + "v" * 5000,
    ],
)
def test_an_invalid_tracestate_goes_alone(state: str) -> None:
    assert trace_context([TRACE], [state]) == (("traceparent", TRACE),)


def test_32_members_and_vendor_keys_are_a_valid_state() -> None:
    state = ",".join([*(f"k{n}=v" for n in range(31)), "1tenant@vendor=x y"])
    assert trace_context([TRACE], [state])[1] == ("tracestate", state)


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=40)), max_size=12))
def test_no_headers_can_break_the_reader_or_leave_illegal_metadata(pairs: list[tuple[str, str]]) -> None:
    found = read(*((name.lower(), value) for name, value in pairs))
    assert 1 <= len(found.request_id) <= 128
    for name, value in found.metadata:
        assert name == name.lower()
        assert name.isascii()
        assert value.isascii()
        assert value.isprintable()


@given(st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=40)), max_size=12))
def test_bytes_are_read_as_their_latin_1_text_is(pairs: list[tuple[bytes, bytes]]) -> None:
    lower = [(name.lower(), value) for name, value in pairs]
    texts = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in lower]
    one = HeaderReader(("x*",), random.Random(3)).read_bytes(lower)
    other = HeaderReader(("x*",), random.Random(3)).read(texts)
    assert (one.request_id, one.metadata, one.dropped) == (other.request_id, other.metadata, other.dropped)


def test_names_seen_before_are_remembered_within_a_bound() -> None:
    reader = HeaderReader(("*",), random.Random(3))
    for number in range(5000):
        reader.read(((f"x-{number}", "1"),))
    assert len(reader._use) <= 1024


@given(st.text(max_size=60))
def test_any_name_can_stand_in_a_header_and_be_read_back(name: str) -> None:
    text = header_text(name)
    assert text.isascii()
    assert " " not in text
    assert all(0x21 <= ord(character) <= 0x7E for character in text)
    assert urllib.parse.unquote(text) == name.encode("utf-8", "replace").decode()


def test_an_answer_says_who_gave_it() -> None:
    call = make_call(model="team/übung")
    call.trail.version_routed, call.trail.version_served = "2", "3"
    call.trail.rung = "full"
    call.trail.attempts = [Attempt("gpu/a:1", 1000.0)]
    assert response_headers(call) == [
        ("x-request-id", "r-1"),
        ("x-sluice-model", "team/%C3%BCbung"),
        ("x-sluice-model-version", "3"),
        ("x-sluice-rung", "full"),
        ("x-sluice-cache", "bypass"),
        ("x-sluice-attempts", "1"),
    ]


def test_an_error_says_why_and_claims_no_rung() -> None:
    call = make_call()
    call.trail.version_routed, call.trail.rung = "2", "full"
    pairs = dict(response_headers(call, GatewayError(Reason.QUEUE_FULL, "")))
    assert pairs["x-sluice-reason"] == "queue_full"
    assert pairs["x-sluice-model-version"] == "2"
    assert pairs["x-sluice-attempts"] == "0"
    assert "x-sluice-rung" not in pairs
