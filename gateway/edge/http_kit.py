"""What all calls of the HTTP edge share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from gateway.core.faces import BodyBudget, BodyLimits, Catalogue
from gateway.core.service import Service
from gateway.edge.explain import Explainer
from gateway.edge.http_answer import HttpAnswers
from gateway.edge.http_coding import BodyCoding
from gateway.edge.observer import EdgeObserver
from gateway.runtime.clock import Clock
from gateway.wire.kserve.model_config import ModelConfigSummary, summarise_config

_SUMMARIES_MAX = 256


class LimitsOf(Protocol):
    """The limits of a model; None if no policy names it."""

    def __call__(self, model: str) -> BodyLimits | None: ...


@dataclass(slots=True)
class CallKit:
    """What all calls of one edge share."""

    service: Service
    catalogue: Catalogue
    answers: HttpAnswers
    explainer: Explainer
    clock: Clock
    observer: EdgeObserver
    limits_of: LimitsOf
    budget: BodyBudget
    coding: BodyCoding
    tasks: dict[asyncio.Task[None], None] = field(default_factory=dict)
    """Strong references: asyncio keeps only weak ones. Not a set, whose order would change from run to run."""
    _summaries: dict[bytes, ModelConfigSummary] = field(default_factory=dict)

    def config_of(self, model: str, version: str) -> ModelConfigSummary:
        document = self.catalogue.model_config(model, version).proto
        summary = self._summaries.get(document)
        if summary is None:
            summary = summarise_config(document)
            if len(self._summaries) >= _SUMMARIES_MAX:
                self._summaries.clear()
            self._summaries[document] = summary
        return summary
