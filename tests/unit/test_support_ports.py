"""The ports that test processes give: no two workers of one run give the same."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.ports import free_port, share_of


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_workers_of_one_run_give_ports_of_their_own(workers: int) -> None:
    shares = [
        share_of({"PYTEST_XDIST_WORKER": f"gw{number}", "PYTEST_XDIST_WORKER_COUNT": str(workers)})
        for number in range(workers)
    ]
    assert all(len(share) >= 500 for share in shares)
    assert all(one.stop <= other.start for one, other in pairwise(shares))


def test_alone_a_process_has_all_of_them() -> None:
    alone = share_of({})
    assert alone == share_of({"PYTEST_XDIST_WORKER": "gw0", "PYTEST_XDIST_WORKER_COUNT": "1"})
    assert len(alone) > 5000


def test_no_port_is_given_twice() -> None:
    given = [free_port() for _ in range(100)]
    assert len(set(given)) == 100
