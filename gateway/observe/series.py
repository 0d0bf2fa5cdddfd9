"""Where counts are kept between two scrapes: plain numbers in plain containers.

prometheus-client's own counters and histograms cost 1 to 5 us for each value (a lock, a mutex value, a search);
a call has about ten. These cost a tenth of that, and the page is made from them when somebody asks for it.
"""

from __future__ import annotations

from bisect import bisect_left

from gateway.observe.stages import STAGES

Counts = dict[tuple[str, ...], int]


class Histogram:
    """Counts per bucket. `bounds` are upper and inclusive, ascending; the last count is of values over all of them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Plain:
    """Answered calls of one model that were alike in every label: reached every stage in its turn, one good attempt.
    Nearly all calls are; here they cost a few additions, and are put to the others when the page is made.
    """

    __slots__ = (
        "bytes_in", "bytes_out", "count", "queue_s", "queued", "receive_s", "route_s", "upstream_s", "write_s",
    )  # fmt: skip

    def __init__(self) -> None:
        self.count = 0
        self.receive_s = self.route_s = self.queue_s = self.upstream_s = self.write_s = 0.0
        self.queued = 0
        """Those whose wait for a slot was over the first bound; they are in the histogram already."""
        self.bytes_in = self.bytes_out = 0


PlainKey = tuple[str, str, str, str, str, str]
"""Protocol, version served, rung, pool, kind of the attempt, replica; as they come, not closed yet."""


class ModelSeries:
    """What is counted for one model, or for all unknown ones together."""

    __slots__ = (
        "attempts",
        "bytes_in",
        "bytes_out",
        "calls",
        "duration",
        "gone",
        "known_versions",
        "label",
        "plain",
        "queue_wait",
        "shed",
        "stage_counts",
        "stage_sums",
        "versions",
        "warmups",
    )

    def __init__(self, label: str, bounds: tuple[float, ...]) -> None:
        self.label = label
        self.calls: dict[tuple[str, int, str], int] = {}
        """By protocol, code, reason."""
        self.shed: Counts = {}
        """By class, reason."""
        self.duration = Histogram(bounds)
        self.queue_wait = Histogram(bounds)
        self.stage_sums = [0.0] * len(STAGES)
        self.stage_counts = [0] * len(STAGES)
        self.versions: dict[tuple[str, str], int] = {}
        """Answers by version and rung."""
        self.known_versions: frozenset[str] = frozenset()
        self.gone: dict[str, float] = {}
        """Versions that the fleet does not have any more, and since when (monotonic seconds)."""
        self.attempts: Counts = {}
        """By pool, kind, outcome."""
        self.warmups: Counts = {}
        self.plain: dict[PlainKey, Plain] = {}
        """Counted, and in `duration` but for its sum; of the rest nothing is in the others yet."""
        self.bytes_in = 0
        self.bytes_out = 0


class ReplicaSeries:
    """What is counted for one replica. `gone_s`: since when the fleet does not have it; -1.0 while it has."""

    __slots__ = ("gone_s", "label", "outcomes", "pool", "probe_failures")

    def __init__(self, label: str, pool: str) -> None:
        self.label = label
        self.pool = pool
        self.outcomes: dict[str, int] = {}
        self.probe_failures: dict[str, int] = {}
        self.gone_s = -1.0
