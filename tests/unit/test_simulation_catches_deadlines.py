"""The simulation finds faults planted in what attempts are told of the time, and in the stages' answers for theirs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from gateway.decide.stage_budget import CallLine, Stage
from gateway.fleet import http2_head, transport
from gateway.layers import stages
from gateway.layers.cancels import Cancels
from gateway.layers.stages import StagesLayer
from gateway.wire.grpc import encode_timeout
from tests.simulation.small_house import SmallHouse
from tests.unit.simulation_findings import finds, verdict

SPLIT = tuple(seed for seed in range(57) if seed % 7 < 2)
"""Seeds whose policies have stages."""
WAITING = tuple(seed for seed in range(300) if seed % 7 < 2)
"""More of them: calls that wait so long are few."""


def test_houses_with_stages_pass_every_check() -> None:
    assert verdict(SPLIT[2:4]) == ""
    assert verdict(SPLIT[:2], SmallHouse) == ""


def test_an_attempt_that_is_told_the_whole_deadline_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = CallLine.by_s

    def generous(self: CallLine, stage: Stage) -> float:
        return self._deadline_s if stage == "inference" else sound(self, stage)

    monkeypatch.setattr(CallLine, "by_s", generous)
    assert finds("nobody_is_told_more_than_is_left", SPLIT)
    assert finds("nobody_is_told_more_than_is_left", SPLIT, SmallHouse)


def test_a_wait_for_a_slot_that_outlasts_inference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "DeadlineScope", lambda wheel, at_s: nullcontext())
    assert finds("inference_ends_at_its_point", WAITING)


def test_a_margin_on_the_wrong_side_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MARGIN_S", -0.001)
    assert finds("nobody_is_told_more_than_is_left", range(8))


def test_a_header_that_says_more_than_the_limit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = encode_timeout
    monkeypatch.setattr(http2_head, "_limits", {})
    monkeypatch.setattr(http2_head, "encode_timeout", lambda timeout_s: sound(timeout_s * 1.04))
    assert finds("grpc-timeout says", (1, 2, 5, 6))


def test_a_later_limit_that_is_told_where_cancels_are_few_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cancels, "guarded", lambda self, replica: True)
    assert finds("grpc-timeout says", (1, 2, 5, 6))


@pytest.mark.parametrize("stage", ["ingress", "inference"])
def test_a_stage_that_answers_for_nothing_is_found(monkeypatch: pytest.MonkeyPatch, stage: Stage) -> None:
    silent, sound = stage, StagesLayer._judge

    def judge(self: StagesLayer, call: Any, line: Any, stage: Stage, *times: float, cut: bool = False) -> None:
        if stage != silent:
            sound(self, call, line, stage, *times, cut=cut)

    monkeypatch.setattr(StagesLayer, "_judge", judge)
    assert finds("each_stage_answers_for_its_own_time", SPLIT)
