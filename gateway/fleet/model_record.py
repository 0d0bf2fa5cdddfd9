"""What is known of one model version on one replica. The rules that change it are in `replica.py`."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.faces import ModelConfigBytes
from gateway.core.snapshot import ModelState, ModelView, Phases
from gateway.fleet.metrics_text import ModelFigures
from gateway.wire.kserve.model_config import ModelConfigSummary

Key = tuple[str, str]
"""Model and version."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a ready model version says of itself."""

    metadata: bytes
    """Serialized `ModelMetadataResponse`."""
    config: ModelConfigBytes
    summary: ModelConfigSummary


class ModelRecord:
    """One model version on one replica."""

    __slots__ = (
        "bad_trials",
        "batch_fill",
        "compute_us",
        "described_s",
        "description",
        "epoch",
        "figures",
        "findings_against",
        "first_answer_s",
        "first_bad_trial_s",
        "first_finding_s",
        "last_answer_s",
        "note",
        "pending",
        "queue_us",
        "ready_s",
        "reason",
        "seen_s",
        "slots",
        "state",
        "warmed_s",
    )

    def __init__(self, now_s: float) -> None:
        self.state = ModelState.UNAVAILABLE
        self.reason = ""
        self.note = ""
        """How it was warmed, or why it was not."""
        self.slots = 0
        self.epoch = 0
        self.description: Description | None = None
        self.described_s = 0.0
        self.findings_against = 0
        self.first_finding_s = 0.0
        self.bad_trials = 0
        self.first_bad_trial_s = float("inf")
        self.last_answer_s = float("-inf")
        self.seen_s = now_s
        self.ready_s: float | None = None
        self.warmed_s: float | None = None
        self.first_answer_s: float | None = None
        self.figures: ModelFigures | None = None
        self.clear_figures()

    def clear_figures(self) -> None:
        self.pending: int | None = None
        self.queue_us: float | None = None
        self.compute_us: float | None = None
        self.batch_fill: float | None = None

    def view(self, key: Key) -> ModelView:
        return ModelView(
            name=key[0],
            version=key[1],
            state=self.state,
            slots=self.slots,
            reason=self.reason,
            warmup=self.note,
            phases=Phases(
                seen_s=self.seen_s,
                ready_s=self.ready_s,
                warmed_s=self.warmed_s,
                first_answer_s=self.first_answer_s,
            ),
            pending=self.pending,
            queue_us=self.queue_us,
            compute_us=self.compute_us,
            batch_fill=self.batch_fill,
        )
