"""One request, sent to Triton and through Sluice, and a judge: both answers say the same, but for rows of the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from gateway.edge.deviations import DEVIATIONS
from tests.support.differential_compare import Comparison
from tests.support.differential_grpc import GrpcSent, GrpcSide
from tests.support.differential_http import WAIT_S, HttpAnswer, HttpSent, HttpSide
from tests.support.differential_rows import ROWS

T = TypeVar("T")

COMPANIONS = frozenset({"more-headers", "error-type"})
"""Rows that come with other rows and alone; they are not named by the tests that meet them."""

PLAYS = 4
"""Triton 2.51 can crash by a race of its own (an error of validation on a stream with calls out, say). A comparison in
which it died says nothing and is played again on a new one; one that kills it each time is a finding."""

LOST_S = 5.0
"""A process closes its sockets before it is seen to be dead: so long to wait after an answer that was lost."""

ONE_SIDED = frozenset({"framing", "too-large"})
"""Rows under which the gateway ends connections that Triton keeps."""

IDS = frozenset(row.id for row in DEVIATIONS)
assert set(ROWS) <= IDS, f"rows that the table does not have: {sorted(set(ROWS) - IDS)}"


def explained_by(row_id: str, comparison: Comparison) -> frozenset[str]:
    """The differences of `comparison` that this row of the table accounts for."""
    judge = ROWS.get(row_id)
    return frozenset(comparison.differences) & judge(comparison) if judge else frozenset()


class Differential:
    """Two servers. `comparisons` counts, `exercised` says how often each row was needed, `crashes` how often Triton
    died under a comparison."""

    def __init__(self, direct: tuple[str, str], through: tuple[str, str], revive: Callable[[float], bool]) -> None:
        """Addresses for HTTP and for gRPC. `revive` tells whether Triton has died, or does within so many seconds; if
        so it starts it again and waits until both sides serve."""
        self._revive = revive
        self.crashes = 0
        self.http = (HttpSide(direct[0]), HttpSide(through[0]))
        self.grpc = (GrpcSide(direct[1]), GrpcSide(through[1]))
        self.comparisons = 0
        self.exercised: Counter[str] = Counter()

    def close(self) -> None:
        for side in (*self.http, *self.grpc):
            side.close()

    def compare(self, sent: HttpSent | GrpcSent) -> Comparison:
        """Both answers, not judged."""
        sides: Any = self.http if isinstance(sent, HttpSent) else self.grpc
        return self.alive(lambda: Comparison(sent, *(side.ask(sent) for side in sides)), sent)

    def alive(self, play: Callable[[], T], what: object) -> T:
        """What `play` gives when Triton outlives it."""
        for _ in range(PLAYS):
            try:
                found = play()
            except OSError:
                if not self.died(LOST_S):
                    raise
                continue
            if not self.died(LOST_S if isinstance(found, Comparison) and _is_lost(found) else 0.0):
                return found
        raise AssertionError(f"Triton died at each of {PLAYS} plays of {what}")

    def died(self, patience_s: float) -> bool:
        """Whether Triton has died, or dies in so many seconds; if so it has been started again."""
        died = self._revive(patience_s)
        self.crashes += died
        if died:
            self.close()  # connections to the dead one
        return died

    def check(self, sent: HttpSent | GrpcSent, *rows: str) -> Comparison:
        """The same answers but for these rows, each of which must be met.

        Where Triton's own stream stood still until its deadline and the gateway's did not, Triton has lost a response
        (2.51 does so now and then when an error of validation overtakes calls that are out). That says nothing of the
        gateway and is played again; a stream that stands still each time is a finding.
        """
        comparison = self.compare(sent)
        for _ in range(PLAYS - 1):
            if not _only_triton_hung(comparison):
                break
            comparison = self.compare(sent)
        return self.judge(comparison, *rows)

    def check_any(self, sent: HttpSent | GrpcSent) -> Comparison:
        """The same answers but for whichever rows."""
        comparison = self.compare(sent)
        self._needed(comparison)
        return comparison

    def check_rows(self, sent: HttpSent | GrpcSent) -> set[str]:
        """The rows that account for all differences, companions included."""
        return self._needed(self.compare(sent))

    def judge(self, comparison: Comparison, *rows: str) -> Comparison:
        needed = self._needed(comparison) - COMPANIONS
        assert needed == set(rows), f"rows met: {sorted(needed)}, expected: {sorted(rows)}\n{comparison}"
        return comparison

    def talk(
        self, data: bytes, *rows: str, count: int = 1, direct_wait_s: float = WAIT_S, **options: Any
    ) -> list[Comparison]:
        """The same for bytes on a connection of their own, answered by `count` answers; the rows are the last one's.
        Triton is silent if the last one does not come within `direct_wait_s`.
        """
        target = data.partition(b" ")[2].partition(b" ")[0].decode("latin-1")
        sent = HttpSent(data, data.partition(b" ")[0].decode("latin-1"), target)

        def play() -> tuple[list[HttpAnswer], list[HttpAnswer]]:
            through = self.http[1].talk(data, count, **options)
            # Triton does not announce each end, and a busy machine may need time for it.
            ends = through[-1].ended and not ONE_SIDED & set(rows)
            return self.http[0].talk(data, count, last_wait_s=direct_wait_s, ends=ends, **options), through

        direct, through = self.alive(play, sent)
        assert len(direct) == len(through) or rows, f"{direct} and {through}"
        found = [Comparison(sent, a, b) for a, b in zip(direct, through, strict=False)]
        return [self.judge(each, *(rows if each is found[-1] else ())) for each in found]

    def _needed(self, comparison: Comparison) -> set[str]:
        self.comparisons += 1
        left = set(comparison.differences)
        needed: set[str] = set()
        # A row is needed if it explains what no row before it does: the wide ones come last.
        for row_id in sorted(ROWS, key=lambda name: name not in COMPANIONS):
            found = explained_by(row_id, comparison) & left
            if found:
                needed.add(row_id)
                left -= found
        assert not left, f"not in the table of deviations: {sorted(left)}\n{comparison}"
        self.exercised.update(needed)
        return needed


def _is_lost(comparison: Comparison) -> bool:
    """Triton ended under the call, or under the gateway's."""
    return getattr(comparison.direct, "code", "") == "UNAVAILABLE" or comparison.through.reason == "upstream_lost"


def _only_triton_hung(comparison: Comparison) -> bool:
    direct, through = (getattr(side, "code", "") for side in (comparison.direct, comparison.through))
    return direct == "DEADLINE_EXCEEDED" != through
