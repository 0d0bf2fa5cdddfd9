"""Random requests, directly and through the gateway: every difference is a row of the table of deviations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings

from tests.support import differential_strategies as strategies
from tests.support.differential import Differential
from tests.support.differential_grpc import GrpcSent
from tests.support.differential_http import HttpSent

WELL_FORMED_ROWS = {
    "json-doubles",
    "json-text",
    "binary-default",
    "bad-json",
    "split-bytes",
    "sequence-nul",
    "error-text",
}
"""What a well-formed request may meet; `bad-json` by parameters of a wrong type."""


Test = TypeVar("Test", bound=Callable[..., None])


def examples(count: int) -> Callable[[Test], Test]:
    # Health checks: the fixture is meant to be shared by all examples, and they draw little from much.
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]
    return settings(max_examples=count, deadline=None, suppress_health_check=checks, print_blob=True)


@examples(400)
@given(strategies.http_requests())
def test_well_formed_requests_over_http(differential: Differential, sent: HttpSent) -> None:
    rows = differential.check_rows(sent)
    assert rows - {"more-headers", "error-type"} <= WELL_FORMED_ROWS


@examples(400)
@given(strategies.broken_documents())
def test_documents_with_something_wrong(differential: Differential, sent: HttpSent) -> None:
    differential.check_any(sent)


@examples(300)
@given(strategies.broken_bytes())
def test_bodies_with_something_wrong(differential: Differential, sent: HttpSent) -> None:
    differential.check_any(sent)


@examples(300)
@given(strategies.grpc_requests())
def test_well_formed_requests_over_grpc(differential: Differential, sent: GrpcSent) -> None:
    assert differential.check_rows(sent) <= {"more-headers", "fault-order", "sequence-nul", "error-text"}


@examples(300)
@given(strategies.broken_messages())
def test_messages_with_something_wrong(differential: Differential, sent: GrpcSent) -> None:
    differential.check_any(sent)


MANY = [
    strategies.http_requests(),
    strategies.broken_documents(),
    strategies.broken_bytes(),
    strategies.grpc_requests(),
    strategies.broken_messages(),
]


@pytest.mark.field
@pytest.mark.parametrize("number", range(len(MANY)))
def test_many_more(differential: Differential, number: int) -> None:
    @examples(10_000)
    @given(MANY[number])
    def check(sent: HttpSent | GrpcSent) -> None:
        differential.check_any(sent)

    check()
