"""The schema of `deadline.stages`: the deadline split over the stages of a call."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.policy.strict import Strict

Stage = Literal["ingress", "features", "inference", "postprocessing"]
"""The same as in `decide/stage_budget.py`."""


class Stages(Strict, frozen=True, kw_only=True):
    """Each stage should be over when so much time and that of the stages before it has passed."""

    ingress_ms: Annotated[
        Annotated[float, Meta(gt=0, le=86_400_000)] | None,
        Meta(description="From the first byte to the choice of a version: the upload. Default: none of its own."),
    ] = None
    features_ms: Annotated[
        Annotated[float, Meta(gt=0, le=86_400_000)] | None,
        Meta(
            description="For fetching features. No call does that before the layer `features` is there: until then "
            "all of it passes on to inference. Default: none."
        ),
    ] = None
    inference_ms: Annotated[
        float,
        Meta(
            gt=0,
            le=86_400_000,
            description="The wait for a slot and the model server's work. What earlier stages did not use comes to it, "
            "and so does what a caller's deadline is longer than the sum.",
        ),
    ]
    postprocessing_ms: Annotated[
        Annotated[float, Meta(gt=0, le=86_400_000)] | None,
        Meta(
            description="To the last byte written. Inference ends that much before the deadline, with 504. Default: "
            "none."
        ),
    ] = None

    @property
    def seconds(self) -> dict[Stage, float]:
        """Of those that are given, in their order."""
        given: tuple[tuple[Stage, float | None], ...] = (
            ("ingress", self.ingress_ms),
            ("features", self.features_ms),
            ("inference", self.inference_ms),
            ("postprocessing", self.postprocessing_ms),
        )
        return {stage: ms / 1000 for stage, ms in given if ms is not None}
