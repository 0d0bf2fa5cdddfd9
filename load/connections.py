"""`python -m load connections`: what idle connections cost the gateway, and whether the others feel them."""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any, cast

import uvloop

from load.closed_loop import answers
from load.connection import Connection
from load.errors import LoadError, UsageError
from load.histogram import Histogram
from load.inputs import Calls, IdentityInputs
from load.opening import PROTOCOLS, Opening, Protocol, caller, opening
from load.options import require_json_folder, tell
from load.stand import SPARE_FILES, GatewayReading, Stand, allow_files, read_gateway, stand
from load.verdict import EXIT_CODES, PAIRS_MIN, UNCHANGED_RATIO_MAX, Verdict, passed, spread, unchanged, worst

COUNT_MAX = 25_000
"""A source address has about 28,000 ports."""
IP_BIND_ADDRESS_NO_PORT = 24
"""linux/in.h; the module `socket` names it from Python 3.12 on."""
AT_ONCE = 200
"""Connections that are being opened at one time."""
DEADLINE_MS = 5000
SETTLE_S = 15.0
IDLE_MS = 3_600_000
"""The gateway's own time-out for idle connections, during the test."""
OPEN_TIMEOUT_S = 30.0
GONE_TIMEOUT_S = 30.0
DESCRIPTORS_SLACK = 5
TASKS_SLACK = 3

EXAMPLE = """\
examples:
  python -m load connections --count 10000
  python -m load connections --protocol grpc --count 10000 --pairs 1 --json -

Opens --count connections to a real Sluice, HTTP/1.1 or HTTP/2 for gRPC, asks over each whether it lives and leaves them
idle; reads the gateway's memory, descriptors and tasks; makes inference calls over new connections before and
meanwhile; then closes all and waits until the gateway is as it was. That --pairs times, so that latencies with and
without idle connections are compared in interleaved pairs.

exit codes: 0 all checks passed; 1 one failed; 2 wrong usage; 3 inconclusive (the latencies of the pairs disagree too
much, or there are fewer than five pairs); 130 interrupted"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.epilog = EXAMPLE
    parser.add_argument("--protocol", choices=PROTOCOLS, default="http", help="default: http")
    parser.add_argument("--count", type=int, default=10_000, metavar="N", help="idle connections (default: 10000)")
    parser.add_argument("--pairs", type=int, default=PAIRS_MIN, metavar="N", help=f"default: {PAIRS_MIN}")
    parser.add_argument("--calls", type=int, default=300, metavar="N", help="of each half of a pair (default: 300)")
    parser.add_argument("--rss-mb-max", type=float, default=400.0, metavar="MB",
                        help="the gateway's memory with all connections open (default: 400)")  # fmt: skip
    parser.add_argument("--keep", action="store_true", help="keep the folder of policies, records and logs")
    parser.add_argument("--json", metavar="OUT", help="write the figures as JSON to this file; - is stdout")


def run(arguments: argparse.Namespace) -> int:
    """Run the test. Returns its exit code."""
    count = arguments.count
    if not 1 <= count <= COUNT_MAX or arguments.pairs < 1 or arguments.calls < 1:
        raise UsageError(f"--count is from 1 to {COUNT_MAX}; --pairs and --calls are at least 1")
    require_json_folder(arguments.json)
    allow_files(count + SPARE_FILES)
    protocol: Protocol = arguments.protocol
    idle_key = {"http": "keepalive_idle_ms", "grpc": "idle_timeout_ms"}[protocol]
    port: dict[str, Any] = {protocol: {"connections_max": count + SPARE_FILES, idle_key: IDLE_MS}}
    up = stand(1, [IdentityInputs.model], slots=16, deadline_ms=DEADLINE_MS, gateway=port, keep=arguments.keep)
    with up as ready, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        cycles = runner.run(_cycles(ready, protocol, count, arguments.pairs, arguments.calls))
    result = document(count, cycles, arguments.rss_mb_max, protocol)
    tell(result, arguments.json, summary)
    return EXIT_CODES[cast(Verdict, result["verdict"])]


@dataclass(frozen=True, slots=True)
class Block:
    """Inference calls, one after the other, each over a new connection."""

    calls: int
    errors: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Cycle:
    """One pair: without idle connections, with them, and when they have gone."""

    before: GatewayReading
    during: GatewayReading
    after: GatewayReading
    alone: Block
    beside: Block
    opened: int
    still_open: int
    """Of those, after the calls beside them."""
    seconds_to_open: float


class _Idle(asyncio.Protocol):
    """One connection: one request, then silence."""

    __slots__ = ("_opening", "answered", "got", "open", "transport")

    def __init__(self, begin: Opening, answered: asyncio.Future[bool]) -> None:
        self._opening = begin
        self.answered = answered
        self.got = b""
        self.open = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from it
        self.open = True
        self.transport.write(self._opening.said)

    def data_received(self, data: bytes) -> None:
        if self.answered.done():
            return
        self.got += data
        good = self._opening.good(self.got)
        if good is not None:
            self.got = b""
            self.answered.set_result(good)

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        if not self.answered.done():
            self.answered.set_result(False)


class IdleConnections:
    """`count` connections to host:port, from the loopback address `source`."""

    def __init__(self, address: str, count: int, source: str, protocol: Protocol = "http") -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._source = source
        self._count = count
        self._opening = opening(protocol, address)
        self._all: list[_Idle] = []

    async def open(self) -> int:
        """Open all, ask over each. Returns how many got a good answer and stay open."""
        turn = asyncio.Semaphore(AT_ONCE)
        done = await asyncio.gather(*(self._one(turn) for _ in range(self._count)), return_exceptions=True)
        problems = {str(each) for each in done if isinstance(each, OSError)}
        if problems and not self.still_open():
            raise LoadError(f"no connection to {self._host}:{self._port}: {'; '.join(sorted(problems)[:3])}")
        for each in done:
            if isinstance(each, BaseException) and not isinstance(each, OSError):
                raise each
        return sum(each is True for each in done)

    async def _one(self, turn: asyncio.Semaphore) -> bool:
        loop = asyncio.get_running_loop()
        async with turn, asyncio.timeout(OPEN_TIMEOUT_S):
            answered: asyncio.Future[bool] = loop.create_future()
            with ExitStack() as closing:
                made = closing.enter_context(socket.socket())
                made.setblocking(False)
                made.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)  # or each bind searches for a free port
                made.bind((self._source, 0))
                await loop.sock_connect(made, (self._host, self._port))
                _, idle = await loop.create_connection(lambda: _Idle(self._opening, answered), sock=made)
                closing.pop_all()
            self._all.append(idle)
            return await answered

    def still_open(self) -> int:
        """How many the gateway has not closed."""
        return sum(each.open for each in self._all)

    def close(self) -> None:
        """Close all, in order."""
        for each in self._all:
            if each.transport is not None:
                each.transport.close()
        self._all.clear()


async def _cycles(ready: Stand, protocol: Protocol, count: int, pairs: int, calls: int) -> list[Cycle]:
    supply = Calls(random.getrandbits(32), DEADLINE_MS)
    inputs = IdentityInputs()
    connection = caller(protocol, _address(ready, protocol), inputs)
    error = await answers(connection, supply, SETTLE_S)
    await connection.aclose()
    if error:
        raise LoadError(f"sluice gives no right answer: {error}; run it again with --keep and read the logs")
    await _block(ready, protocol, supply, inputs, calls)  # what is made once only is made now
    cycles = []
    for number in range(pairs):
        cycles.append(await _cycle(ready, protocol, supply, inputs, count, calls, source=f"127.0.0.{2 + number % 250}"))
        _progress(number + 1, pairs, cycles[-1])
    return cycles


async def _cycle(
    ready: Stand, protocol: Protocol, supply: Calls, inputs: IdentityInputs, count: int, calls: int, *, source: str
) -> Cycle:
    before = await asyncio.to_thread(read_gateway, ready.pid, ready.metrics)
    alone = await _block(ready, protocol, supply, inputs, calls)
    loop = asyncio.get_running_loop()
    # A source address of its own: the ports of the cycle before are still in TIME_WAIT.
    idle = IdleConnections(_address(ready, protocol), count, source, protocol)
    begun_s = loop.time()
    try:
        opened = await idle.open()
        took_s = loop.time() - begun_s
        await asyncio.sleep(1.0)
        during = await asyncio.to_thread(read_gateway, ready.pid, ready.metrics)
        beside = await _block(ready, protocol, supply, inputs, calls)
        still_open = idle.still_open()
    finally:
        idle.close()
    after = await _gone(ready, before)
    return Cycle(before, during, after, alone, beside, opened, still_open, took_s)


async def _gone(ready: Stand, before: GatewayReading) -> GatewayReading:
    """Read until the gateway has no more connections than before, or the time is up."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + GONE_TIMEOUT_S
    while True:
        await asyncio.sleep(0.6)  # the page is made at most twice a second
        reading = await asyncio.to_thread(read_gateway, ready.pid, ready.metrics)
        settled = reading.connections <= before.connections and reading.tasks <= before.tasks + TASKS_SLACK
        if settled or loop.time() > end_s:
            return reading


def _address(ready: Stand, protocol: Protocol) -> str:
    return ready.http if protocol == "http" else ready.grpc


async def _block(ready: Stand, protocol: Protocol, supply: Calls, inputs: IdentityInputs, calls: int) -> Block:
    loop = asyncio.get_running_loop()
    latency, errors = Histogram(), 0
    for _ in range(calls):
        connection = caller(protocol, _address(ready, protocol), inputs)
        ended: asyncio.Future[str] = loop.create_future()
        begun_ns = time.perf_counter_ns()  # the loop's own time is in whole milliseconds
        connection.send(supply.next(), ended.set_result)
        give_up = loop.call_later(DEADLINE_MS / 1000 + 1.5, partial(_check, connection))
        error = await ended
        latency.record(time.perf_counter_ns() - begun_ns)
        give_up.cancel()
        errors += bool(error)
        await connection.aclose()
    return Block(calls, errors, latency.quantile_ns(0.5) / 1e6, latency.quantile_ns(0.99) / 1e6)


def _check(connection: Connection) -> None:
    connection.check(asyncio.get_running_loop().time())


def document(count: int, cycles: list[Cycle], rss_mb_max: float, protocol: Protocol = "http") -> dict[str, Any]:
    """Checks, verdict and figures. A check that is inconclusive has the reason as `why`."""
    first = cycles[0]
    during_mb = max(each.during.rss_bytes for each in cycles) / 1e6
    per_connection_kb = (first.during.rss_bytes - first.before.rss_bytes) / count / 1000
    ratios = [each.beside.p50_ms / each.alone.p50_ms for each in cycles]
    latency, why = unchanged(ratios)
    found = spread(ratios)
    errors = sum(each.alone.errors + each.beside.errors for each in cycles)
    opened = min(each.opened for each in cycles)
    still_open = min(each.still_open for each in cycles)
    descriptors = max(each.after.descriptors - each.before.descriptors for each in cycles)
    tasks = max(each.after.tasks - each.before.tasks for each in cycles)
    left = max(each.after.connections for each in cycles)

    def check(
        name: str, limit: float, measured: float, verdict: Verdict, why: str = ""
    ) -> tuple[dict[str, Any], Verdict]:
        made = {"name": name, "limit": limit, "measured": round(measured, 3), "pass": passed(verdict)}
        return {**made, "why": why} if why else made, verdict

    def plain(name: str, limit: float, measured: float, good: bool) -> tuple[dict[str, Any], Verdict]:
        return check(name, limit, measured, "pass" if good else "fail")

    judged = [
        plain("connections opened and answered", count, opened, opened == count),
        plain("connections that stayed open", count, still_open, still_open == count),
        plain("gateway's memory with them, MB", rss_mb_max, during_mb, during_mb <= rss_mb_max),
        plain("calls beside them that failed", 0, errors, errors == 0),
        check("p50 of calls over new connections, with over without", UNCHANGED_RATIO_MAX, found.median, latency, why),
        plain("connections left after the end", 0, left, left == 0),
        plain("descriptors more than before", DESCRIPTORS_SLACK, descriptors, descriptors <= DESCRIPTORS_SLACK),
        plain("tasks more than before", TASKS_SLACK, tasks, tasks <= TASKS_SLACK),
    ]
    return {
        "scenario": "connections",
        "verdict": worst(verdict for _, verdict in judged),
        "checks": [each for each, _ in judged],
        "figures": {
            "connections": count,
            "protocol": protocol,
            "rss_mb_before": round(first.before.rss_bytes / 1e6, 1),
            "rss_mb_during": round(first.during.rss_bytes / 1e6, 1),
            "rss_mb_after": round(first.after.rss_bytes / 1e6, 1),
            "rss_mb_after_all": round(cycles[-1].after.rss_bytes / 1e6, 1),
            "kb_per_connection": round(per_connection_kb, 2),
            "descriptors_during": first.during.descriptors,
            "tasks_during": first.during.tasks,
            "seconds_to_open": round(median(each.seconds_to_open for each in cycles), 2),
            "p50_ms_alone": round(median(each.alone.p50_ms for each in cycles), 3),
            "p50_ms_beside": round(median(each.beside.p50_ms for each in cycles), 3),
            "p99_ms_alone": round(median(each.alone.p99_ms for each in cycles), 3),
            "p99_ms_beside": round(median(each.beside.p99_ms for each in cycles), 3),
            "p50_ratio": {name: round(value, 3) for name, value in asdict(found).items()},
            "cycles": [asdict(each) for each in cycles],
        },
    }


def summary(result: dict[str, Any]) -> str:
    """The result for people."""
    figures = result["figures"]
    lines = [
        f"{figures['connections']} idle {figures['protocol']} connections: {figures['rss_mb_before']} MB before, "
        f"{figures['rss_mb_during']} MB with them ({figures['kb_per_connection']} kB each), "
        f"{figures['rss_mb_after']} MB after; {figures['descriptors_during']} descriptors, {figures['tasks_during']} "
        f"tasks; opened in {figures['seconds_to_open']} s",
        f"calls over new connections: p50 {figures['p50_ms_alone']} ms alone, {figures['p50_ms_beside']} ms beside "
        f"them; p99 {figures['p99_ms_alone']} and {figures['p99_ms_beside']} ms",
    ]
    for check in result["checks"]:
        word = {True: "pass", False: "fail", None: "inconclusive"}[check["pass"]]
        reason = f": {check['why']}" if "why" in check else ""
        lines.append(f"{word}: {check['name']} (measured {check['measured']:g}, limit {check['limit']:g}){reason}")
    return "\n".join([*lines, f"verdict: {result['verdict']}"])


def _progress(number: int, pairs: int, cycle: Cycle) -> None:
    print(
        f"pair {number}/{pairs}: {cycle.still_open} open, {cycle.during.rss_bytes / 1e6:.0f} MB; "
        f"p50 {cycle.alone.p50_ms:.2f} ms alone, {cycle.beside.p50_ms:.2f} ms beside them",
        file=sys.stderr,
        flush=True,
    )
