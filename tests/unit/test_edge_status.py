"""The table from errors to HTTP."""

from __future__ import annotations

import json
import random

import pytest

from gateway.core.codes import Code
from gateway.core.errors import GatewayError, Reason
from gateway.core.faults import UpstreamFault, classify, to_error
from gateway.edge.status import CODE_STATUS, RETRY_AFTER_MAX_S, error_body, retry_after_s, status_of


def test_every_reason_and_every_code_has_an_error_status() -> None:
    assert set(CODE_STATUS) == set(Code)
    for reason in Reason:
        assert 400 <= status_of(GatewayError(reason, "")) <= 599


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.INVALID_ARGUMENT, 400),
        (Code.NOT_FOUND, 404),
        (Code.UNIMPLEMENTED, 501),
        (Code.INTERNAL, 500),
        (Code.ALREADY_EXISTS, 400),
        (Code.CANCELLED, 400),
        (Code.UNKNOWN, 400),
    ],
)
def test_what_a_model_answers_has_the_status_that_triton_gives_it(code: Code, status: int) -> None:
    fault = UpstreamFault(code, "the model says so", from_peer=True)
    assert status_of(to_error(fault, classify(fault))) == status


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("Exceeds maximum queue size", 503),
        ("Request timeout expired", 504),
        ("Request for unknown model: 'm' version 1 is not at ready state", 503),
    ],
)
def test_the_meanings_of_unavailable_are_told_apart(text: str, status: int) -> None:
    fault = UpstreamFault(Code.UNAVAILABLE, text, from_peer=True)
    assert status_of(to_error(fault, classify(fault))) == status


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (Reason.BAD_REQUEST, 400),
        (Reason.UNAUTHENTICATED, 401),
        (Reason.FORBIDDEN, 403),
        (Reason.UNKNOWN_MODEL, 404),
        (Reason.UNKNOWN_VERSION, 404),
        (Reason.SLOW_BODY, 408),
        (Reason.TOO_LARGE, 413),
        (Reason.ANSWER_TOO_LARGE, 500),
        (Reason.UNSUPPORTED, 501),
        (Reason.QUEUE_FULL, 503),
        (Reason.BODY_MEMORY, 503),
        (Reason.NO_REPLICA, 503),
        (Reason.DRAINING, 503),
        (Reason.DEADLINE, 504),
        (Reason.INTERNAL, 500),
    ],
)
def test_the_gateways_own_reasons_have_their_status(reason: Reason, status: int) -> None:
    assert status_of(GatewayError(reason, "")) == status


def test_a_reason_of_its_own_status_keeps_it_whatever_the_code() -> None:
    assert status_of(GatewayError(Reason.TOO_LARGE, "", Code.INVALID_ARGUMENT)) == 413


@pytest.mark.parametrize("text", ["", "plain", 'quotes " and \\', "zwölf \U0001f600", "\x00\x1f", "lone \ud800 half"])
def test_the_body_is_always_json_with_one_member(text: str) -> None:
    document = json.loads(error_body(text))
    assert list(document) == ["error"]
    assert document["error"].startswith(text.split("\ud800")[0])


def test_retry_after_is_whole_seconds_jittered_and_bounded() -> None:
    chance = random.Random(1)
    seen = {retry_after_s(GatewayError(Reason.QUEUE_FULL, "", retry_after_s=20.0), chance) for _ in range(200)}
    assert min(seen) >= 20
    assert max(seen) <= 30
    assert len(seen) > 3
    soon = [retry_after_s(GatewayError(Reason.SHED, "", retry_after_s=1.0), chance) for _ in range(400)]
    assert set(soon) == {1, 2}
    assert 50 < soon.count(2) < 150, "a quarter: not all who are turned away together come back together"
    for hint in (None, 0.0, -5.0, 0.001, float("nan")):
        assert retry_after_s(GatewayError(Reason.NO_REPLICA, "", retry_after_s=hint), chance) in (1, 2)
    huge = GatewayError(Reason.NO_REPLICA, "", retry_after_s=float("inf"))
    assert retry_after_s(huge, chance) == RETRY_AFTER_MAX_S
