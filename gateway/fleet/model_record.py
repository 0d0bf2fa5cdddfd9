"""What is known of one model version on one replica. The rules that change it are in `replica.py`."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.faces import ModelConfigBytes
from gateway.core.snapshot import ModelState, ModelView, Phases
from gateway.fleet.metrics_text import ModelFigures, rates
from gateway.fleet.slots import batch_max, places
from gateway.wire.kserve.model_config import ModelConfigSummary

Key = tuple[str, str]
"""Model and version."""

LEFT_SOON_S = 60.0
HELD_S = 8.0
HELD_MAX_S = 32.0
"""A version that goes out of service (it refuses a call, or says that it is not ready), and within `LEFT_SOON_S` of its
coming back once more, is held out for `HELD_S`, doubled each time up to `HELD_MAX_S`, unless nobody else serves it:
each time it goes may cost the calls that are out then, and its coming back costs a warm-up.
"""


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
        "_view",
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
        "held_until_s",
        "last_answer_s",
        "left_s",
        "left_times",
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
        self.left_times = 0
        """How often in a row it came into service and soon went out of it."""
        self.left_s = self.held_until_s = float("-inf")
        self.seen_s = now_s
        self.ready_s: float | None = None
        self.warmed_s: float | None = None
        self.first_answer_s: float | None = None
        self.figures: ModelFigures | None = None
        self.clear_figures()
        self._view: ModelView | None = None

    def clear_figures(self) -> None:
        self.pending: int | None = None
        self.queue_us: float | None = None
        self.compute_us: float | None = None
        self.batch_fill: float | None = None

    def show(self, figures: ModelFigures | None) -> bool:
        """Take what a metrics page says of it (None: nothing). True if that changes the view."""
        before = (self.pending, self.queue_us, self.compute_us, self.batch_fill)
        if figures is None:
            self.clear_figures()
        else:
            self.queue_us, self.compute_us, self.batch_fill = rates(self.figures, figures)
            self.pending = None if figures.pending is None else int(min(figures.pending, 1e12))
            self.figures = figures
        return before != (self.pending, self.queue_us, self.compute_us, self.batch_fill)

    def left(self, now_s: float) -> None:
        """It goes out of service; how long it is held out now depends on how soon after its coming back that is."""
        back_s = self.ready_s if self.warmed_s is None else self.warmed_s
        soon = back_s is not None and now_s - back_s < LEFT_SOON_S
        self.left_times = self.left_times + 1 if soon else 1
        self.left_s = now_s
        if self.left_times > 1:
            self.held_until_s = now_s + min(HELD_MAX_S, HELD_S * 2.0 ** min(self.left_times - 2, 16))

    def stale(self) -> None:
        """What a view shows has changed: the next one is made anew."""
        self._view = None

    def view(self, key: Key) -> ModelView:
        """The same object as long as nothing that it shows has changed: who compares views, or makes something of
        them, finds at once what to look at.
        """
        if self._view is None:
            self._view = self._make_view(key)
        return self._view

    def _make_view(self, key: Key) -> ModelView:
        return ModelView(
            name=key[0],
            version=key[1],
            state=self.state,
            slots=self.slots,
            places=0 if self.description is None else places(self.description.summary),
            batch_max=0 if self.description is None else batch_max(self.description.summary),
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
            decoupled=self.description is not None and self.description.summary.decoupled,
            text_outputs=frozenset() if self.description is None else self.description.summary.text_outputs,
            sequence_idle_s=None if self.description is None else self.description.summary.sequence_idle_s,
            batches=self.description is None or self.description.summary.max_batch_size > 0,
        )
