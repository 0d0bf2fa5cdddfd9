"""One scenario on one target, once: the senders, the run, and what the kernel says of it meanwhile."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat

from load import accounting
from load.arrivals import schedule
from load.clock import KernelClock
from load.closed_loop import answers
from load.connection import CONNECTION, NO_HEADERS, Connection, Sender
from load.errors import LoadError
from load.http_connection import HttpConnection
from load.inputs import AccelInputs, Calls, IdentityInputs, Inputs
from load.open_loop import Moment, OpenLoopResult, Traffic, run_open_loop
from load.raw_grpc_connection import RawGrpcConnection
from load.run_figures import Machine
from load.scenario import LoadedScenario
from load.scenario_faults import windows
from load.scenario_schema import TrafficSpec
from load.senders import Multiplexed, Pool
from load.streams import EventStreams, GrpcStreams, Tokens

SETTLE_S = 15.0
_GC_THRESHOLD = 50_000
"""New objects between two collections of the youngest generation; Python's own 700 would mean several per 1,000 calls.
"""
_CONNECT_S = 3.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where calls go: host:port per protocol, and the processes whose work is accounted, if they are known."""

    name: str
    addresses: dict[str, str]
    gateway_pid: int | None = None
    server_pids: Callable[[], Sequence[int]] | None = None
    """Of the Tritons and their stubs, as they are now. None: not known, and then neither is what others do."""


async def drive(
    scenario: LoadedScenario, target: Target, *, run: int, on_second: Callable[[Moment], None]
) -> tuple[OpenLoopResult, Machine]:
    """Wait until the target answers, then run. `run` sets the ids of this run's calls apart. Raises LoadError."""
    spec = scenario.spec
    senders = [sender_of(each, target) for each in spec.traffic]
    traffic = [
        Traffic(each.name, sender, _calls(each, run + index), streams=each.model == "streamer", fan_out=each.fan_out)
        for index, (each, sender) in enumerate(zip(spec.traffic, senders, strict=True))
    ]
    processes = [(each.name, process) for each, process in zip(spec.traffic, scenario.arrivals, strict=True)]
    watch = _Watch(target, spec.duration_s)

    def second(moment: Moment) -> None:
        watch.look(moment.elapsed_s)
        on_second(moment)

    try:
        await asyncio.gather(*(map(_settle, spec.traffic, senders, repeat(target))))
        with few_collections():
            result = await run_open_loop(
                schedule(processes, seed=spec.seed, warm_up_s=spec.warm_up_s, until_s=spec.duration_s),
                traffic,
                clock=KernelClock(),
                duration_s=spec.duration_s,
                in_flight_max=spec.in_flight_max,
                on_second=second,
                windows=windows(spec),
            )
    finally:
        await asyncio.gather(*(sender.aclose() for sender in senders))
    return result, watch.machine()


def request_ids(run: int, traffic: int) -> str:
    """How the request ids of a run begin, of its kind of traffic with this index."""
    return f"load-{run + traffic & 0xFFFFFFFF:08x}-"


def inputs_of(each: TrafficSpec) -> Inputs:
    """The inputs of a kind of traffic."""
    return AccelInputs(each.body, each.work, each.name) if each.model == "accel" else IdentityInputs(each.body)


def _calls(each: TrafficSpec, run: int) -> Calls:
    return Calls(run, each.deadline_ms, rows=each.distinct_inputs, check_share=each.check_share)


def sender_of(each: TrafficSpec, target: Target) -> Sender:
    """What the calls of a kind of traffic are sent through. Raises LoadError if the target lacks its protocol."""
    address = target.addresses.get(each.protocol)
    if address is None:
        raise LoadError(f"the traffic {each.name} speaks {each.protocol}, for which {target.name} has no address")
    if each.model == "streamer":
        if each.protocol == "http":
            return EventStreams(address, delay_ms=each.response_gap_ms, tokens=each.responses, headers=headers_of(each))
        tokens = Tokens(delay_ms=each.response_gap_ms, tokens=each.responses)
        return GrpcStreams(address, tokens, headers=headers_of(each))
    connect = connecting(each, address)
    return Pool(connect) if each.protocol == "http" else Multiplexed(connect, each.connections)


def connecting(each: TrafficSpec, address: str) -> Callable[[], Connection]:
    """What makes a connection for a kind of traffic, streams left out."""
    kind = HttpConnection if each.protocol == "http" else RawGrpcConnection
    return partial(kind, address, inputs_of(each), headers_of(each))


def headers_of(each: TrafficSpec) -> Mapping[str, str]:
    """What goes with every call of a kind of traffic."""
    return NO_HEADERS if each.priority is None else {"x-sluice-priority": each.priority}


async def _settle(each: TrafficSpec, sender: Sender, target: Target) -> None:
    """Return when the target gives a right answer to this traffic. Raises LoadError."""
    error = await answers(sender, Calls(0, max(each.deadline_ms, 1000)), SETTLE_S)
    if not error:
        return
    remedy = (
        "if it was started here, run it again with --keep and read the logs"
        if target.gateway_pid is not None
        else f"is it what speaks {each.protocol} there, and does it serve {each.model}? Its logs may tell"
    )
    if error == CONNECTION:
        address = target.addresses[each.protocol]
        refused = await _why_no_connection(address)
        if refused:
            raise LoadError(
                f"nothing answers at {address}, where the traffic {each.name} goes ({each.model} over "
                f"{each.protocol}): {refused}; start it, or give its right --address"
            )
        error = "it takes connections and ends them without an answer"
    raise LoadError(
        f"{target.name} gives no right answer to the traffic {each.name} ({each.model} over {each.protocol}): {error}; "
        f"{remedy}"
    )


async def _why_no_connection(address: str) -> str:
    """In words; empty if one can be had."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return "nothing listens on that port"
    except TimeoutError:
        return f"no connection within {_CONNECT_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
    writer.close()
    return ""


@contextmanager
def few_collections() -> Iterator[None]:
    """What exists stays out of collections, and there are few: each of them makes sends late."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@dataclass(frozen=True, slots=True)
class _Look:
    at_s: float
    generator_s: float
    gateway_s: float | None
    servers_s: float | None
    machine_s: float


class _Watch:
    """What the kernel counts between the start of what is measured and its end."""

    def __init__(self, target: Target, duration_s: float) -> None:
        self._target = target
        self._end_s = duration_s + 0.5
        self._first: _Look | None = None
        self._last: _Look | None = None
        self._rss_bytes: int | None = None
        self._gateway: list[tuple[float, float]] = []
        self._servers_s: dict[int, float] = {}
        """Of each process of the servers at the last look; one that has ended meanwhile keeps its own."""

    def look(self, elapsed_s: float) -> None:
        """Called each second of the run."""
        if elapsed_s < 0 or elapsed_s > self._end_s:
            return
        pid = self._target.gateway_pid
        try:
            self._last = _Look(
                at_s=time.monotonic(),
                generator_s=time.process_time(),
                gateway_s=None if pid is None else accounting.cpu_s(pid),
                servers_s=self._servers(),
                machine_s=accounting.machine_busy_s(),
            )
            self._rss_bytes = None if pid is None else accounting.rss_bytes(pid)
        except OSError as error:
            raise LoadError(f"a process of {self._target.name} has ended in the run: {error}") from error
        self._first = self._first or self._last
        if self._last.gateway_s is not None:
            self._gateway.append((elapsed_s, self._last.gateway_s))

    def _servers(self) -> float | None:
        if self._target.server_pids is None:
            return None
        for pid in self._target.server_pids():
            with suppress(ProcessLookupError):  # killed since it was listed, which a scenario may want
                self._servers_s[pid] = accounting.cpu_s(pid)
        return sum(self._servers_s.values())

    def machine(self) -> Machine:
        """What was found."""
        first, last = self._first, self._last
        if first is None or last is None:
            return Machine(0.0)
        generator_s = last.generator_s - first.generator_s
        gateway_s = None if last.gateway_s is None or first.gateway_s is None else last.gateway_s - first.gateway_s
        others: float | None = None
        if last.servers_s is not None and first.servers_s is not None and last.at_s > first.at_s:
            ours_s = generator_s + (gateway_s or 0.0) + last.servers_s - first.servers_s
            others = max(0.0, (last.machine_s - first.machine_s - ours_s) / (last.at_s - first.at_s))
        return Machine(generator_s, gateway_s, self._rss_bytes, others, self._gateway)
