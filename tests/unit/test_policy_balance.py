"""What a policy says of ejection and affinity: read, checked, and in force."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec import structs

from gateway.core.call import Attempt
from gateway.core.outcome import Outcome
from gateway.core.snapshot import Candidate
from gateway.decide.admission import Admission
from gateway.decide.tuning import Tuning
from gateway.policy.load import load_policies
from gateway.policy.problems import PolicyError
from gateway.policy.schema import Affinity, Ejection, ModelPolicy, Objective
from gateway.tuned import tuned

FLEET = "pools: {gpu: {replicas: {static: [{grpc: 10.0.0.1:8001, http: 10.0.0.1:8000}]}}}\n"
MODEL = "model: fraud\npool: gpu\nobjective: {p99_ms: 50}\nladder: none\nimpact: Payments wait for a review.\n"


def policy(text: str, directory: Path, fleet: str = FLEET) -> ModelPolicy:
    (directory / "models").mkdir(exist_ok=True)
    (directory / "fleet.yaml").write_text(fleet)
    (directory / "models" / "fraud.yaml").write_text(MODEL + text)
    return load_policies(str(directory)).models["fraud"]


def plain(**changes: object) -> ModelPolicy:
    made = ModelPolicy(
        model="fraud", pool="gpu", objective=Objective(p99_ms=50), ladder="none", impact="an error is seen"
    )
    return structs.replace(made, **changes)


def test_without_a_word_the_defaults_are_those_of_the_deciders() -> None:
    assert tuned(plain(), Tuning()) == Tuning()


CHANGES = {
    "enabled": False, "share_max": 0.25, "panic_below": 0.3, "failures_in_row": 3, "success_min": 0.5,
    "slow_factor": 9.0, "pause_ms": 250, "pause_max_ms": 9000, "slow_start_ms": 0,
}  # fmt: skip


def test_every_key_of_ejection_reaches_the_decider(tmp_path: Path) -> None:
    assert set(CHANGES) == {field.name for field in structs.fields(Ejection)}
    usual = tuned(plain(), Tuning()).balance.ejection
    for key, value in CHANGES.items():
        text = f"ejection: {{{key}: {str(value).lower()}}}\n"
        changed = tuned(policy(text, tmp_path), Tuning()).balance.ejection
        assert changed != usual, key
    all_of_them = tuned(plain(ejection=Ejection(**CHANGES)), Tuning()).balance.ejection  # type: ignore[arg-type]
    assert (all_of_them.enabled, all_of_them.ejected_max, all_of_them.panic_below) == (False, 0.25, 0.3)
    breaker = all_of_them.breaker
    assert (breaker.failures_in_row, breaker.success_min, breaker.slow_factor) == (3, 0.5, 9.0)
    assert (breaker.open_s, breaker.open_max_s, breaker.slow_start_s) == (0.25, 9.0, 0.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ejection: {share_max: 1.5}", "share_max"),
        ("ejection: {pause_ms: 2000, pause_max_ms: 1000}", "longer than `pause_max_ms`"),
        ("ejection: {pause_ms: 100000}", "longer than `pause_max_ms`"),
        ("ejection: {pause_max_ms: 500}", "longer than `pause_max_ms`"),
        ("ejection: {failures: 3}", "failures"),
        ("breaker: {failures: 3}", "stands under `ejection`"),
        ("affinity: {name: x-user}", "by"),
        ("affinity: {by: cookie}", "by"),
        ("affinity: {by: header}", "does not say which header"),
        ("affinity: {by: parameter}", "does not say which parameter"),
        ("affinity: {by: header, name: X-User}", "write `x-user`"),
        ("affinity: {by: header, name: x-user*}", "not a header's name"),
        ("affinity: {by: header, name: authorization}", "is a credential"),
        ("affinity: {by: header, name: x-sluice-priority}", "is a credential"),
        ("affinity: {by: sequence, name: id}", "means nothing with `by: sequence`"),
        ('affinity: {by: parameter, name: "a\\tb"}', "control character"),
        ("affinity: {by: header, name: x-user, load_factor: 0.5}", "load_factor"),
    ],
)
def test_what_makes_no_sense_is_refused_in_clear_words(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as refused:
        policy(text + "\n", tmp_path)
    problems = str(refused.value).splitlines()
    assert len([line for line in problems if ":6:" in line or "fraud.yaml" in line]) == 1, problems
    assert said in str(refused.value)


def test_a_header_that_is_not_let_through_has_no_affinity(tmp_path: Path) -> None:
    text = "affinity: {by: header, name: x-user}\n"
    for forward, good in (("x-team", False), ("x-user", True), ("x-*", True), ("*", True)):
        fleet = FLEET + f"gateway: {{forward_headers: ['{forward}']}}\n"
        if good:
            assert policy(text, tmp_path, fleet).affinity == Affinity(by="header", name="x-user")
        else:
            with pytest.raises(PolicyError, match=r"not among `gateway\.forward_headers`"):
                policy(text, tmp_path, fleet)
    header = "identity: {mode: header, header: {name: x-user, networks: [10.0.0.0/8]}}\n"
    with pytest.raises(PolicyError, match="names the tenant"):
        policy(text, tmp_path, FLEET + header)


def test_turned_off_it_is_really_off() -> None:
    """Whatever calls come to: nobody is out, nobody proves, nothing is kept."""
    off = tuned(plain(ejection=Ejection(enabled=False)), Tuning())
    for tuning, ejected in ((off, 0), (Tuning(), 1)):
        admission, now_s = Admission(random.Random(1), tuning=tuning), 10.0
        admission.update((Candidate("a", 2), Candidate("b", 2)), now_s)
        for _ in range(400):
            permit = admission.take(now_s + 10.0, now_s)
            assert permit is not None
            now_s += 0.5
            permit.attempt = attempt = Attempt(permit.replica, now_s - 0.01)
            attempt.ended_s, attempt.outcome = now_s, Outcome.BROKEN if permit.replica == "a" else Outcome.OK
            admission.give_back(permit, now_s)
            if not ejected:
                assert permit.special is None
        figures = admission.statistics(now_s)["ejection"]
        assert (figures["moves"]["failures_in_row"] > 0) == bool(ejected)
        assert admission.balance.ejection.calm is not bool(ejected)
        if not ejected:
            assert not figures["enabled"]
            assert not figures["by_replica"]
