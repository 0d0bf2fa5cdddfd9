"""A deterministic asyncio event loop: virtual time, seeded order, no I/O.

`SimulationLoop` is the stdlib's `BaseEventLoop` with its one turn rewritten. Tasks, futures, `asyncio.timeout`,
`TaskGroup`, `Event`, `Queue` and context variables are the stdlib's own and run unmodified. What differs:

**Time** is a number. While a callback is ready it stands still; when nothing is ready it jumps to the earliest timer.
With `lateness_s` above zero a jump overshoots by a seeded amount below it, as a busy machine's timers do, so that
several timers become due in one turn.

**Order.** A turn takes the callbacks that are ready at its start and runs each of them once; what they schedule runs
in the next turn at the earliest, as in asyncio. Within a turn the callbacks are dealt into *lanes*; the order inside
a lane is the order of registration, the interleaving of lanes is drawn from the seed. The lane of a callback is

1. the object it is bound to (`functools.partial` unwrapped): for steps and wake-ups of a task that is the task, so a
   task, a protocol or a connection sees its own callbacks in exactly the order in which asyncio delivers them;
2. for the stdlib's "set this future's result" callbacks of sleeping tasks: that future;
3. one lane common to all other plain functions and closures: `call_soon(f); call_soon(g)` still runs f before g.

Real asyncio never swaps two lanes of one turn by itself, but the kernel decides there which turn a callback falls
into, so no correct program may depend on it. Lanes of tasks are numbered by creation before the draw: the stdlib's
`TaskGroup` cancels its children in the order of a set, that is of memory addresses; this makes it irrelevant.

**Refusals.** Executors, threads, sockets, pipes, subprocesses, signals and name resolution raise `Refused`: a stack
under simulation takes these from its faces. Endless work without progress raises `Livelock`, a main task that nothing
can wake `Deadlock`, a run that exceeds its virtual time `Overtime`; each names the seed.

`simulate()` runs one coroutine to its end in a fresh loop, and makes a `Leftover` of everything that asyncio would
only log: exceptions nobody retrieved, destroyed pending tasks, coroutines never awaited, tasks left over.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import heapq
import random
import threading
import warnings
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

START_S = 1000.0
"""Virtual time of a fresh loop: not zero, so that code which takes 0.0 for "no time" is found out."""


class SimulationError(Exception):
    """The loop cannot go on, or the run left something behind. The text names the seed."""


class Refused(SimulationError):
    """Something that touches the real world was asked of the simulated loop."""


class Deadlock(SimulationError):
    """The main task is pending, and no callback or timer is left that could wake it."""


class Livelock(SimulationError):
    """Too many callbacks ran without virtual time moving."""


class Overtime(SimulationError):
    """The main task is still pending at the end of the virtual time allowed: mostly a wait that only timers outlive."""


class Leftover(SimulationError):
    """The run ended, but left tasks, unretrieved exceptions or coroutines that were never awaited."""


class SimulationLoop(asyncio.BaseEventLoop):
    """Event loop on virtual time. `seed` None keeps asyncio's own order (first in, first out)."""

    # BaseEventLoop owns these; the stdlib has no public way to replace one turn of a loop.
    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(
        self,
        seed: int | None = 0,
        *,
        lateness_s: float = 0.0,
        callbacks_per_instant: int = 100_000,
        time_limit_s: float = 3600.0,
    ) -> None:
        super().__init__()
        self.seed = seed
        self.callbacks_run = 0
        self.failures: list[str] = []
        self.on_quiet: Callable[[], None] | None = None
        """Called when nothing is ready and time is about to move: everything that could happen at this instant has."""
        self._random = random.Random(f"loop/{seed}") if seed is not None else None
        self._lateness_s = lateness_s
        self._callbacks_per_instant = callbacks_per_instant
        self._end_s = START_S + time_limit_s
        self._now_s = START_S
        self._ran_at_instant = 0
        self._task_count = 0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._thread = threading.get_ident()
        self.set_exception_handler(self._note_failure)

    # -- time ---------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds; moves only between turns."""
        return self._now_s

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As the stdlib's. Timers of one instant become ready in the order in which they were set."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As the stdlib's."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    # -- one turn -----------------------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        timers, ready = self._timers, self._ready
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not ready and not self._stopping:
            self._jump()
        now_s = self._now_s
        while timers and timers[0][0] <= now_s:
            timer = heapq.heappop(timers)[2]
            if not timer.cancelled():
                ready.append(timer)
        count = len(ready)
        batch: list[Any] = [ready.popleft() for _ in range(count)]
        if count > 1:
            batch = self._deal(batch)
        for handle in batch:
            # Asked here, not before: an earlier callback of this very turn may cancel a later one.
            if not handle.cancelled():
                handle._run()
        self.callbacks_run += count
        self._ran_at_instant += count
        if self._ran_at_instant > self._callbacks_per_instant:
            raise Livelock(
                f"seed {self.seed}: {self._ran_at_instant} callbacks ran at virtual time {self._now_s:.6f} s "
                f"without time moving; the last were {_names(batch[-3:])}"
            )

    def _jump(self) -> None:
        if self.on_quiet is not None:
            self.on_quiet()
        if not self._timers:
            raise Deadlock(
                f"seed {self.seed}: nothing is ready and no timer is set at virtual time {self._now_s:.6f} s, "
                f"but these tasks wait: {'; '.join(_describe(task) for task in self.tasks_left()) or 'none'}"
            )
        target_s = self._timers[0][0]
        if self._lateness_s and self._random is not None:
            target_s += self._lateness_s * self._random.random()
        if target_s > self._end_s:
            raise Overtime(
                f"seed {self.seed}: not finished at the end of the virtual time allowed, {self._end_s - START_S:g} s; "
                f"these tasks wait: {'; '.join(_describe(task) for task in self.tasks_left())}"
            )
        if target_s > self._now_s:
            self._now_s = target_s
            self._ran_at_instant = 0

    def _deal(self, batch: list[Any]) -> list[Any]:
        """One seeded interleaving of the lanes of `batch`; every interleaving is equally likely."""
        if self._random is None:
            return batch
        lanes: dict[int, list[Any]] = {}
        ranks: dict[int, int] = {}  # tasks by creation, then the others by appearance
        order: list[tuple[int, int]] = []  # (rank, key) of the lane of every callback
        for position, handle in enumerate(batch):
            owner: Any = _lane_owner(handle)
            key = id(owner)
            lane = lanes.get(key)
            if lane is None:
                lanes[key] = lane = []
                ranks[key] = getattr(owner, _SERIAL, _AFTER_TASKS + position)
            order.append((ranks[key], key))
            lane.append(handle)
        if len(lanes) == 1:
            return batch
        order.sort(key=_rank)
        self._random.shuffle(order)
        iterators = {key: iter(lane) for key, lane in lanes.items()}
        return [next(iterators[key]) for _, key in order]

    # -- tasks --------------------------------------------------------------------------------------------------------

    def create_task(self, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        """As the stdlib's, but numbers the task and names it by that number: the stdlib's counter outlives the loop."""
        self._task_count += 1
        if kwargs.get("name") is None:
            kwargs["name"] = f"task-{self._task_count}"
        serial = self._task_count
        task: asyncio.Task[Any] = super().create_task(coro, **kwargs)
        setattr(task, _SERIAL, serial)
        return task

    def tasks_left(self) -> list[asyncio.Task[Any]]:
        """Tasks not done, in the order of their creation."""
        return sorted(asyncio.all_tasks(self), key=lambda task: getattr(task, _SERIAL, 0))

    def _note_failure(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = str(context.get("message"))
        if error is not None:
            text += f": {type(error).__name__}: {error}{_where(error)}"
        task = context.get("task") or context.get("future")
        if isinstance(task, asyncio.Task):
            text += f" (in {_describe(task)})"
        self.failures.append(text)

    # -- refusals -----------------------------------------------------------------------------------------------------

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Allowed from the loop's own thread only: another thread's timing is not part of the seed."""
        if threading.get_ident() != self._thread:
            self._refuse("a callback from another thread")
        return self.call_soon(callback, *args, context=context)

    def _refuse(self, what: str) -> NoReturn:
        raise Refused(
            f"seed {self.seed}: {what} was asked of the simulated loop. Nothing in a simulation may touch the real "
            "world: take it through a face (clock, chance, connector, resolver, workers) that the simulation replaces"
        )


def _refusal(name: str, what: str) -> Callable[..., NoReturn]:
    def refuse(self: SimulationLoop, *_: object, **__: object) -> NoReturn:
        self._refuse(f"{what} ({name})")

    refuse.__name__ = name
    refuse.__doc__ = "Refused."
    return refuse


_REFUSED = {
    "an executor": "run_in_executor set_default_executor",
    "name resolution": "getaddrinfo getnameinfo",
    "a socket": "create_connection create_server create_unix_connection create_unix_server create_datagram_endpoint "
    "connect_accepted_socket start_tls sock_connect sock_accept sock_recv sock_recv_into sock_recvfrom sock_sendall "
    "sock_sendto sendfile sock_sendfile",
    "a pipe": "connect_read_pipe connect_write_pipe",
    "a subprocess": "subprocess_exec subprocess_shell",
    "a file descriptor": "add_reader remove_reader add_writer remove_writer",
    "a signal": "add_signal_handler remove_signal_handler",
}
for _what, _methods in _REFUSED.items():
    for _name in _methods.split():
        setattr(SimulationLoop, _name, _refusal(_name, _what))


def simulate(
    main: Callable[[SimulationLoop], Coroutine[Any, Any, T]],
    *,
    seed: int | None = 0,
    lateness_s: float = 0.0,
    callbacks_per_instant: int = 100_000,
    time_limit_s: float = 3600.0,
) -> T:
    """Run `main(loop)` to its end in a fresh loop and return its result.

    The garbage collector is off during the run, because it would finalise cycles at moments that no seed controls, and
    runs once at the end, so that what asyncio reports from finalisers belongs to this run. Raises what `main` raises;
    otherwise `Leftover` if the run left anything behind, or one of the other `SimulationError`s.
    """
    loop = SimulationLoop(
        seed, lateness_s=lateness_s, callbacks_per_instant=callbacks_per_instant, time_limit_s=time_limit_s
    )
    collecting = gc.isenabled()
    gc.disable()
    never_awaited: list[str] = []
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("always", message=".*was never awaited", category=RuntimeWarning)
            shown = warnings.showwarning

            def note(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
                if issubclass(category, RuntimeWarning) and "was never awaited" in str(message):
                    never_awaited.append(str(message))
                else:
                    shown(message, category, *args, **kwargs)

            warnings.showwarning = note
            try:
                result = loop.run_until_complete(main(loop))
                left = [_describe(task) for task in loop.tasks_left()]
            finally:
                _sweep(loop)
                gc.collect()
    finally:
        loop.close()
        if collecting:
            gc.enable()
    problems = [f"task left over: {text}" for text in left] + loop.failures + never_awaited
    if problems:
        raise Leftover(f"seed {seed}: " + "; ".join(problems))
    return result


def _sweep(loop: SimulationLoop) -> None:
    """Cancel what is left, so that a failed run does not print about its tasks during the next one."""
    for _ in range(10):
        tasks = loop.tasks_left()
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        loop._ran_at_instant = 0
        try:
            loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
        except SimulationError:
            return


def _lane_owner(handle: Any) -> object:
    callback: Any = handle._callback
    while isinstance(callback, functools.partial):
        callback = callback.func
    owner = getattr(callback, "__self__", None)
    # A builtin function's __self__ is its module, which is nobody's state.
    if owner is not None and not isinstance(owner, type(asyncio)):
        return owner
    arguments: Any = handle._args
    if callback is _SET_RESULT and arguments:
        return arguments[0]
    return _PLAIN


_SERIAL = "_simulation_serial"
_PLAIN = object()
_AFTER_TASKS = 1 << 60
_SET_RESULT: Any = getattr(asyncio.futures, "_set_result_unless_cancelled", None)


def _rank(entry: tuple[int, int]) -> int:
    return entry[0]


def _names(handles: list[Any]) -> str:
    return ", ".join(repr(getattr(handle, "_callback", handle)) for handle in handles)


def _describe(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    place = f" at {_short(frames[-1].f_code.co_filename)}:{frames[-1].f_lineno}" if frames else ""
    return f"{task.get_name()} {getattr(task.get_coro(), '__qualname__', '?')}{place}"


def _where(error: BaseException) -> str:
    trace = error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f" at {_short(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"


def _short(path: str) -> str:
    return "/".join(path.rsplit("/", 3)[-3:])
