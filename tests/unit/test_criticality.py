"""Which class a call has: by its policy, by what its caller asks, and never above its tenant's; who may have which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.core.call import ANONYMOUS, Call, Identity
from gateway.core.credentials import NO_CREDENTIALS, Credentials, Peer, PeerCertificate
from gateway.core.criticality import CLASS_NAMES, CLASS_OF
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply
from gateway.decide.class_tally import ClassTally
from gateway.decide.cohorts import CLASSES
from gateway.edge.explain import Explainer
from gateway.edge.identity import IdentityDesk
from gateway.layers.gate import GateLayer
from gateway.policy.identity import Identifier, Networks
from gateway.policy.identity_schema import HeaderPolicy, IdentityPolicy, JwtPolicy, MtlsPolicy
from gateway.policy.identity_subjects import parse_subjects
from gateway.policy.keys import AnonymousAuthenticator, new_key, parse_keys
from gateway.policy.load import load_policies
from gateway.policy.problems import PolicyError
from gateway.runtime.workers import InlineWorkers
from tests.support.calls import make_call
from tests.support.clock import ManualClock
from tests.support.service import ScriptedService
from tests.unit.policy_tree import FLEET, MODEL, problems_of, write
from tests.unit.test_identity_jwt import NOW_S, RSA, jwk, jwks, refusal, ring, token
from tests.unit.test_layers_outer import Keys, Rules
from tests.unit.test_observe_metrics import metrics, text

KEY, HASH = new_key(bytes(range(32)))


def test_the_classes_are_those_that_the_deciders_count() -> None:
    assert len(CLASS_NAMES) == CLASSES
    assert [CLASS_OF[name] for name in CLASS_NAMES] == [0, 1, 2, 3]


# --- the gate ---------------------------------------------------------------------------------------------------------


async def gated(asked: int | None, *, highest: int = 1, default: int = 1, explain: bool = False) -> Call:
    inner = ScriptedService(lambda call: Reply(b""))
    subject = GateLayer(inner, Keys(k=Identity("shop", highest_class=highest)), Rules(default_class=default))
    call = make_call(api_key="k")
    call.priority, call.explain = asked, explain
    await subject.send(call)
    assert inner.seen == [call]
    return call


@pytest.mark.parametrize("asked", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("highest", [0, 1, 2, 3])
@pytest.mark.parametrize("default", [0, 1, 2, 3])
async def test_a_call_is_of_the_class_that_it_asks_for_but_of_none_above_its_tenants(
    asked: int | None, highest: int, default: int
) -> None:
    call = await gated(asked, highest=highest, default=default)
    assert call.criticality == max(highest, default if asked is None else asked)
    assert bool(call.trail.notes) == (asked is not None and asked < highest), "only what is unusual is noted"


@pytest.mark.parametrize(
    ("asked", "highest", "word", "saw"),
    [
        (None, 1, "default", {"default": "critical", "highest": "critical", "class": "critical"}),
        (None, 3, "lowered", {"default": "critical", "highest": "sheddable", "class": "sheddable"}),
        (2, 0, "asked", {"asked": "sheddable_plus", "highest": "critical_plus", "class": "sheddable_plus"}),
        (0, 2, "lowered", {"asked": "critical_plus", "highest": "sheddable_plus", "class": "sheddable_plus"}),
    ],
)
async def test_an_explanation_says_where_the_class_came_from(
    asked: int | None, highest: int, word: str, saw: dict[str, str]
) -> None:
    call = await gated(asked, highest=highest, explain=True)
    assert call.trail.notes == [("class", word, saw)]
    story = Explainer(1).explain(call, 1001.0)
    assert f'"class": "{saw["class"]}"' in story


# --- the highest class of a tenant ------------------------------------------------------------------------------------


def test_keys_name_the_highest_class_of_their_holders() -> None:
    text = f"- {{tenant: shop, sha256: {HASH!r}, highest_class: critical_plus}}\n"
    assert parse_keys(text.encode(), "keys.yaml").identify(KEY).highest_class == 0
    plain = f"- {{tenant: shop, sha256: {HASH!r}}}\n"
    assert parse_keys(plain.encode(), "keys.yaml").identify(KEY).highest_class == 1
    assert parse_keys(plain.encode(), "keys.yaml", 3).identify(KEY).highest_class == 3


def test_a_class_that_there_is_not_is_refused_in_the_key_file() -> None:
    text = f"- {{tenant: shop, sha256: {HASH!r}, highest_class: critical-plus}}\n"
    with pytest.raises(PolicyError) as refused:
        parse_keys(text.encode(), "keys.yaml")
    (problem,) = refused.value.problems
    assert "critical_plus" in str(problem)


def test_subjects_of_certificates_name_it_too() -> None:
    shop = PeerCertificate(common_name="shop")
    named = parse_subjects(b"- {subject: 'cn:shop', tenant: shop, highest_class: sheddable}\n", "s.yaml", 0)
    assert named.identify(shop, NOW_S).highest_class == 3
    plain = parse_subjects(b"- {subject: 'cn:shop', tenant: shop}\n", "s.yaml", 0)
    assert plain.identify(shop, NOW_S).highest_class == 0


@pytest.mark.parametrize("name", CLASS_NAMES)
def test_tokens_name_it_by_a_claim(name: str) -> None:
    subject = ring(class_claim="class")
    assert subject.identify(token(**{"class": name}), NOW_S).highest_class == CLASS_OF[name]
    assert ring().identify(token(**{"class": name}), NOW_S).highest_class == 1, "no claim is looked at unasked"
    assert subject.identify(token(), NOW_S).highest_class == 1


@pytest.mark.parametrize("value", ["critical-plus", "", 0, True, ["critical"], {"a": 1}])
def test_a_token_with_another_class_is_refused_whatever_it_is(value: Any) -> None:
    said = refusal(ring(class_claim="class"), token(**{"class": value}))
    assert said == "the token names a class of calls that there is not"


def test_whoever_is_asked_for_nothing_has_the_fleets() -> None:
    assert AnonymousAuthenticator(0).identify(NO_CREDENTIALS) == Identity("anonymous", highest_class=0)
    assert Identifier(highest_class=3).identify(NO_CREDENTIALS, NOW_S) == Identity("anonymous", highest_class=3)
    assert Identifier().identify(NO_CREDENTIALS, NOW_S) is ANONYMOUS


def test_so_has_the_tenant_of_a_trusted_header() -> None:
    subject = Identifier(networks=Networks(["10.0.0.0/8"]), highest_class=0)
    shown = Credentials(claimed="shop", peer=Peer("10.1.1.1"))
    assert subject.identify(shown, NOW_S) == Identity("shop", highest_class=0)


class OneFile:
    """`Files`: whatever is asked for is this."""

    def __init__(self, **named: bytes) -> None:
        self._named = named

    async def read(self, path: str) -> bytes:
        return self._named[path]


async def test_the_fleets_highest_class_reaches_every_kind_of_credentials() -> None:
    policy = IdentityPolicy(
        mode="any",
        highest_class="sheddable_plus",
        keys_file="keys",
        jwt=JwtPolicy(keys_file="jwks", issuer="https://issuer.example", audience="sluice"),
        mtls=MtlsPolicy(subjects_file="subjects"),
        header=HeaderPolicy(name="x-tenant", networks=("10.0.0.0/8",)),
    )
    files = OneFile(
        keys=f"- {{tenant: shop, sha256: {HASH!r}}}\n".encode(),
        jwks=jwks(jwk(RSA, "rsa-1")),
        subjects=b"- {subject: 'cn:shop', tenant: shop}\n",
    )
    clock = ManualClock()
    desk = IdentityDesk(policy, lambda path: path, files=files, workers=InlineWorkers(), clock=clock)
    await desk.load()
    for shown in (
        Credentials(api_key=KEY),
        Credentials(claimed="shop", peer=Peer("10.1.1.1")),
        Credentials(peer=Peer("", PeerCertificate(common_name="shop"))),
    ):
        assert desk.identify(shown) == Identity("shop", highest_class=2)
    assert desk._tokens is not None
    assert desk._tokens.value._highest_class == 2


# --- the default class of a model -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ("", "critical"),
        ("latency_critical: true\n", "critical_plus"),
        ("interactive: false\n", "sheddable_plus"),
        ("interactive: true\n", "critical"),
        ("classes: {default: sheddable}\n", "sheddable"),
        ("latency_critical: true\nclasses: {default: critical}\n", "critical"),
        ("interactive: false\nclasses: {default: critical_plus}\n", "critical_plus"),
        ("interactive: false\nlatency_critical: true\nclasses: {default: sheddable}\n", "sheddable"),
    ],
)
def test_the_policy_says_the_class_of_calls_that_name_none(keys: str, name: str, tmp_path: Path) -> None:
    write(tmp_path, model=MODEL + keys)
    assert load_policies(str(tmp_path)).models["fraud"].default_class == CLASS_OF[name]


def test_two_wishes_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    write(tmp_path, model=MODEL + "latency_critical: true\ninteractive: false\n")
    (problem,) = problems_of(tmp_path)
    assert problem.path == "interactive"
    assert "classes.default" in problem.remedy


def test_a_bad_default_is_told_with_the_words_there_are(tmp_path: Path) -> None:
    write(tmp_path, model=MODEL + "classes: {default: high}\n")
    (problem,) = problems_of(tmp_path)
    assert problem.path == "classes.default"
    assert "sheddable_plus" in str(problem)


def test_the_fleet_says_the_highest_class_of_all_others(tmp_path: Path) -> None:
    write(tmp_path, fleet=FLEET + "identity: {highest_class: critical_plus}\n")
    assert load_policies(str(tmp_path)).fleet.identity.highest_class == "critical_plus"


# --- what is counted --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", list(Reason))
def test_calls_that_admission_turned_away_are_counted_by_class(reason: Reason) -> None:
    of = metrics()
    call = make_call()
    call.criticality = 3
    of.call_ended(call, Outcome.OVERLOAD, GatewayError(reason, "no"), None, 1001.0)
    line = f'sluice_calls_shed_total{{class="sheddable",model="fraud",reason="{reason.label}"}} 1.0'
    counted = reason in {Reason.QUEUE_FULL, Reason.SHED, Reason.INFEASIBLE}
    assert (line in text(of)) == counted
    assert ("sluice_calls_shed_total{" in text(of)) == counted


def test_refusals_are_told_by_class_and_word() -> None:
    tally = ClassTally()
    for rank, why in ((3, "cohort"), (3, "cohort"), (3, "queue_full"), (1, "pushed_out")):
        tally.refused(rank, why)
    assert tally.statistics({"0": 0, "1": 2, "2": 0, "3": 0}) == {
        "critical_plus": {"waiting": 0, "refused": {}},
        "critical": {"waiting": 2, "refused": {"pushed_out": 1}},
        "sheddable_plus": {"waiting": 0, "refused": {}},
        "sheddable": {"waiting": 0, "refused": {"cohort": 2, "queue_full": 1}},
    }
