"""Many calls at a time over connections of one caller each."""

from __future__ import annotations

from load.connection import Done
from load.inputs import Calls, LoadCall
from load.senders import Multiplexed, Pool


class HandConnection:
    """Calls end when the test says so."""

    def __init__(self) -> None:
        self.out: list[Done] = []
        self.checked_s: list[float] = []
        self.closed = False

    def send(self, call: LoadCall, done: Done) -> None:
        self.out.append(done)

    def check(self, now_s: float) -> None:
        self.checked_s.append(now_s)

    async def aclose(self) -> None:
        self.closed = True


async def test_a_pool_has_a_connection_for_each_call_in_flight_and_takes_the_last_used_first() -> None:
    made: list[HandConnection] = []

    def make() -> HandConnection:
        made.append(HandConnection())
        return made[-1]

    pool, calls, ends = Pool(make), Calls(1, 1000), list[str]()
    for _ in range(3):
        pool.send(calls.next(), ends.append)
    assert [len(each.out) for each in made] == [1, 1, 1]
    made[0].out.pop()("")
    made[2].out.pop()("status 503")
    pool.send(calls.next(), ends.append)
    assert [len(each.out) for each in made] == [0, 1, 1]
    assert ends == ["", "status 503"]
    pool.check(7.0)
    await pool.aclose()
    assert all(each.closed and each.checked_s == [7.0] for each in made)


async def test_a_connection_is_free_again_before_its_caller_is_told() -> None:
    made: list[HandConnection] = []

    def make() -> HandConnection:
        made.append(HandConnection())
        return made[-1]

    pool, calls = Pool(make), Calls(1, 1000)
    pool.send(calls.next(), lambda error: pool.send(calls.next(), lambda error: None))
    made[0].out.pop()("")
    assert (len(made), len(made[0].out)) == (1, 1)


async def test_multiplexed_connections_are_taken_in_turn() -> None:
    made: list[HandConnection] = []

    def make() -> HandConnection:
        made.append(HandConnection())
        return made[-1]

    sender, calls = Multiplexed(make, 2), Calls(1, 1000)
    for _ in range(5):
        sender.send(calls.next(), lambda error: None)
    assert sorted(len(each.out) for each in made) == [2, 3]
    sender.check(7.0)
    await sender.aclose()
    assert all(each.closed and each.checked_s == [7.0] for each in made)
