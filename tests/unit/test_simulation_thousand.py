"""A thousand seeds through the whole gateway, and every seed that once found something."""

from __future__ import annotations

from tests.simulation import runner


def test_a_thousand_seeds_and_the_pinned_ones_keep_every_invariant() -> None:
    seeds = [*runner.pinned(), *range(1000)]
    verdicts = runner.judge_all(seeds, jobs=2)
    failed = [verdict for verdict in verdicts if verdict.violations]
    assert not failed, "\n".join(runner.explain(verdict) for verdict in failed[:3])
    assert len(verdicts) == len(seeds)
    # A simulation in which nothing is answered, or nothing goes wrong, shows nothing.
    calls = sum(verdict.calls for verdict in verdicts)
    assert calls > 100 * len(seeds)
    assert sum(verdict.answered for verdict in verdicts) > calls / 2
    statuses = {status for verdict in verdicts for status in verdict.statuses}
    expected = {
        "ok",
        "deadline",
        "queue_full",
        "no_replica",
        "unknown_model",
        "unknown_version",
        "upstream_lost",
        "left",
        "error",
        "expired",
        "unsent",
        "sequence_lost",
    }
    assert statuses >= expected
