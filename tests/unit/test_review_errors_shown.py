"""What callers are told of a model server's errors: the server's words, without where it stands; and who is blamed."""

from __future__ import annotations

import time

import pytest

from gateway.core.call import Call
from gateway.core.codes import Code
from gateway.core.errors import Reason
from gateway.core.faults import UpstreamFault, classify, public_text, to_error
from gateway.core.outcome import TEACHINGS, Outcome, Verdict
from gateway.edge.explain import Explainer
from gateway.edge.headers import response_headers
from gateway.fleet.grpc_faults import to_fault
from tests.support.calls import make_call

SECRETS = [
    ("connect to ipv4:192.168.1.5 failed", "168"),
    ("connect to ipv4:10.20.30.40:8001 failed", "30"),
    ("proxy-ip10.20.30.40 refused", "30"),
    ("connect to ipv6:%5B2001:db8::1%5D:8001", "db8"),
    ("connect to [2001:db8::1]:8001", "db8"),
    ("connect to [fe80::1%eth0]:8001", "fe80"),
    ("connect to 2001:db8::1 failed", "db8"),
    ("connect to 2001:db8:1:2:3:4:5:6 failed", "db8"),
    ("connect to ::ffff:10.20.30.40", "30"),
    ("no host gpu-host-7:8001 there", "gpu-host"),
    ("no host triton-0.triton.prod.svc.cluster.local there", "prod"),
    ("see http://metadata.internal/v1/key", "metadata"),
    ("open file:///opt/tritonserver/model.py", "tritonserver"),
    ("poll s3://bucket/models/fraud", "bucket"),
    ("poll //bucket/models/fraud", "bucket"),
    ("unable to read '/opt/tritonserver/models/fraud'", "tritonserver"),
    ("poll /models", "models"),
    ("open /opt/a=b/c~d/secret", "secret"),
    ("open /~root/secret", "secret"),
    ("打开/opt/models/secret", "secret"),
    (r"open C:\models\fraud\secret", "secret"),
    (r"open \\host\share\secret", "secret"),
    ("first\nTraceback /opt/x/y", "Traceback"),
]


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_no_address_and_no_path_reaches_a_caller(text: str, secret: str) -> None:
    assert secret not in public_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "unexpected shape for input 'x' for model 'fraud'. Expected [12], got [3]",
        "Expected [-1,12], got [1,3]",
        "std::bad_alloc in torch::jit, c10::Error",
        "Request for unknown model: 'a/b/c' is not found",
        "batch-size must be <= 8 for 'fraud'; 3/4 tokens/s, N/A",
        "data type [FP32] at 12:34:56",
    ],
)
def test_the_model_servers_own_words_are_kept(text: str) -> None:
    assert public_text(text) == text


@pytest.mark.parametrize(
    "piece", ["a.", "a-", "1.", "[", "[a", "[:", "a:", "::", "/", "/a", "\\\\a", "%5B", "A:", "x/"]
)
def test_a_long_text_takes_time_in_proportion_and_not_in_its_square(piece: str) -> None:
    """A caller chooses what a model repeats in its error, and the loop stands still meanwhile."""
    started_s = time.process_time()
    for _ in range(4):
        public_text(piece * (200_000 // len(piece)))
    assert time.process_time() - started_s < 5, "a square would take minutes"


@pytest.mark.parametrize(
    ("text", "outcome", "reason", "words"),
    [
        (
            "CLIENT: Sent message larger than max (4105 vs. 4104)",
            Outcome.CALLER_FAULT,
            Reason.TOO_LARGE,
            "the request of 4105 bytes is larger than `message_bytes_max` of the model's pool allows (8 bytes)",
        ),
        (
            "CLIENT: Received message larger than max (91 vs. 8)",
            Outcome.GATEWAY_FAULT,
            Reason.ANSWER_TOO_LARGE,
            "the answer of 91 bytes is larger than `message_bytes_max` of the model's pool allows (8 bytes)",
        ),
        (
            "Received message larger than max",
            Outcome.GATEWAY_FAULT,
            Reason.ANSWER_TOO_LARGE,
            "the answer is larger than `message_bytes_max` of the model's pool allows",
        ),
    ],
)
def test_a_message_over_our_own_limit_is_not_the_replicas_fault(
    text: str, outcome: Outcome, reason: Reason, words: str
) -> None:
    fault = to_fault(8, text, channel_ready=True, timed_out=False, message_bytes_max=8)
    row = classify(fault)
    error = to_error(fault, row)
    assert (row.outcome, error.reason, error.code) == (outcome, reason, Code.RESOURCE_EXHAUSTED)
    assert error.message == words
    teaching = TEACHINGS[row.outcome]
    assert not teaching.recheck_replica
    assert not teaching.elsewhere
    assert teaching.breaker is Verdict.NEUTRAL


def test_a_lost_connection_stays_the_replicas_fault() -> None:
    row = classify(UpstreamFault(Code.UNAVAILABLE, "Socket closed", from_peer=False))
    assert row.outcome is Outcome.TRANSPORT


def test_a_name_that_fits_no_header_is_in_none() -> None:
    call: Call = make_call("ü" * 100_000, "9" * 100_000)
    sizes = [len(name) + len(value) for name, value in response_headers(call)]
    assert sum(sizes) < 4096
    assert len(Explainer(1).explain(call, 1000.0)) < 4096
    call = make_call("ü" * 255)
    assert "x-sluice-model" in dict(response_headers(call))
