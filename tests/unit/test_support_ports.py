"""The ports that test processes give: no two of them give the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from deploy.local import free_ports
from deploy.local.ports import claim
from tests.support.gateway_process import ROOT
from tests.support.ports import free_port, share_of

OTHER = """
import sys
from deploy.local import free_ports
print(*(port for triple in free_ports(2) for port in triple), flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process() -> Iterator[tuple[int, list[int]]]:
    """One that has found ports for two servers, on which nobody listens yet: its number, and the ports."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        yield other.pid, [int(word) for word in other.stdout.readline().split()]
        other.communicate("")


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


def test_what_another_process_has_found_is_given_to_nobody_else_as_long_as_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert claim(free_ports(1)[0].http) is False, "one's own is not given twice either"
    with another_process() as (number, theirs):
        assert len(theirs) == 6
        assert not any(claim(port) for port in theirs)
        monkeypatch.setattr(os, "getpid", lambda: number)  # the search begins where theirs began
        ours = [port for triple in free_ports(2) for port in triple]
        assert not set(ours) & set(theirs)
    assert all(claim(port) for port in theirs), "a process that has ended holds nothing"
