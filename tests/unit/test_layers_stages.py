"""stages: what is below sees inference's point as the deadline, and each stage answers for its own time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.core.call import Call
from gateway.core.errors import GatewayError, Reason
from gateway.core.outcome import Outcome
from gateway.core.reply import Reply, Response, StreamReply
from gateway.core.service import Service
from gateway.core.session import Session
from gateway.decide.stage_budget import Stage, StageBudget, StageSettings
from gateway.layers.deadline import DeadlineLayer, StreamLimits
from gateway.layers.route import CurrentRoutes, RouteTable
from gateway.layers.stages import StagesLayer
from gateway.policy.schema import Deadline, FleetPolicy, ModelPolicy, Objective, PolicySet, Stages
from gateway.runtime.wheel import TimerWheel
from gateway.stack import build_stack, model_route
from tests.simulation.loop import simulate
from tests.support.attempts import LoopClock
from tests.support.calls import make_call
from tests.support.cancel import cancel_at_every_await
from tests.support.clock import ManualClock
from tests.support.fleet import HandFleet, replica
from tests.support.service import ScriptedService

SPLIT: dict[Stage, float] = {"ingress": 0.015, "features": 0.040, "inference": 0.045, "postprocessing": 0.020}
