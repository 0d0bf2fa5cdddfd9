"""Channel: a connection to a replica that is there when it is wanted, and replaced when it goes.

Where no connection stands the first call asks for one, and those that come meanwhile wait with it. If it cannot be
made they fail together, at once, and so does whoever comes until one stands again: a replica that is not there must
not hold calls up. One attempt runs at a time; after a failed one the next begins by itself, `reconnect_min_ms` after
the begin of the last and then in growing steps up to `reconnect_max_ms`, each varied by a fifth so that many gateways
do not come at the same instant. (https://github.com/grpc/grpc/blob/master/doc/connection-backoff.md, other numbers.)

A replica that says GOAWAY, or lets no more calls begin, gets a further connection; what is out on the old one ends
there.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gateway.core.faults import UpstreamFault
from gateway.fleet.http2_dial import Dialler
from gateway.fleet.http2_faults import lost
from gateway.fleet.http2_link import READ_BYTES, Http2Link, Keepalive
from gateway.runtime.clock import Clock
from gateway.runtime.wheel import Timer, TimerWheel
from gateway.wire.http2 import StreamUnavailable

_log = logging.getLogger("sluice.fleet")

LINKS_MAX = 4
"""Connections of one channel, where the replica bounds the calls of each (MAX_CONCURRENT_STREAMS)."""
WAITING_MAX = 10_000
"""Calls that wait for a connection, or for their turn on those that there are; more fail."""
CLOSE_LIMIT_S = 1.0
_GROWTH = 1.6
_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class Http2Options:
    """Bounds and timing of connections. Times in milliseconds, sizes in bytes.

    `connect_timeout_ms` bounds one attempt to connect, up to the peer's first frames. A message over `bulk_bytes` goes
    over a connection of its own, which is closed when nothing was out on it for `bulk_idle_ms`. Pings: `http2_link`.
    """

    message_bytes_max: int = 64 * 1024 * 1024
    page_bytes_max: int = 8 * 1024 * 1024
    connect_timeout_ms: int = 1000
    reconnect_min_ms: int = 100
    reconnect_max_ms: int = 1000
    bulk_bytes: int = 256 * 1024
    bulk_idle_ms: int = 10_000
    keepalive_ms: int = 30_000
    keepalive_timeout_ms: int = 20_000


@dataclass(slots=True)
class Tally:
    """What has happened on the connections of one replica so far."""

    connects: int = 0
    connect_failures: int = 0
    goaways: int = 0
    moved: int = 0
    """Calls that a replica had not taken, and that were sent again."""
    cancelled: int = 0
    """Calls and streams that were given up while they were out."""
    left: int = 0
    """Calls that were given up and not cancelled: they ran out, or do."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all channels of one client share."""

    dialler: Dialler
    options: Http2Options
    keepalive: Keepalive
    tally: Tally
    clock: Clock
    wheel: TimerWheel
    chance: random.Random
    read_buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(READ_BYTES)))
    """Of all links."""


class Startable(Protocol):
    """A call that is to begin on some link. Synchronous; both may be called for a call that is over, and do nothing."""

    channel: Http2Channel | None
    """Set by whoever chooses it, before `Http2Channel.start`."""

    def begin(self, link: Http2Link) -> None:
        """Raises `StreamUnavailable`, and then has done nothing."""
        ...

    def fail(self, fault: UpstreamFault) -> None: ...


class Http2Channel:
    """Implements `LinkOwner`. With `elsewhere` it is a channel that one can do without: what waits for its connection
    in vain is handed there, the next attempt waits until somebody asks, and a connection that is not used is closed.
    """

    def __init__(self, around: Surroundings, elsewhere: Callable[[Startable], None] | None = None) -> None:
        self._around = around
        self._elsewhere = elsewhere
        self._link: Http2Link | None = None
        """Where the next call begins."""
        self._links: dict[Http2Link, None] = {}
        """Those on which calls can begin."""
        self._leaving: dict[Http2Link, None] = {}
        """Those on which calls may still be out."""
        self._waiting: dict[Startable, None] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._trouble = ""
        """Why the last attempt failed; "" if it has not, or has not been made."""
        self._failures = 0
        self._attempt_s = float("-inf")
        self._idle_timer: Timer | None = None
        self._closed = False
        self._empty: asyncio.Future[None] | None = None
        """Done when the last link is gone, for `aclose`."""

    # -- calls ---------------------------------------------------------------------------------------------------------

    def start(self, call: Startable) -> None:
        """Begin it now, or when there is a connection; or fail it."""
        link = self._link
        if link is not None and not self._waiting:
            try:
                call.begin(link)
                return
            except StreamUnavailable:
                if link.codec.slots_free:
                    link.retire()  # after a billion calls it has no numbers left
        self._start_slowly(call)

    def forget(self, call: Startable) -> None:
        """It is given up before it began."""
        self._waiting.pop(call, None)

    def _start_slowly(self, call: Startable) -> None:
        if self._closed:
            call.fail(lost("the connection is closed", sent=False))
            return
        if self._trouble and not self._may_try_again():
            self._give_up((call,))
        elif len(self._waiting) >= WAITING_MAX:
            call.fail(lost("too many calls wait for their turn on the connections to the replica", sent=False))
        else:
            self._waiting[call] = None
            self._serve()

    def _serve(self) -> None:
        """Begin what waits and finds a slot, in order; see that there is a connection for the rest."""
        waiting = self._waiting
        while waiting:
            link = next((each for each in self._links if each.codec.slots_free), None)
            if link is None:
                break
            self._link = link
            call = next(iter(waiting))
            del waiting[call]
            try:
                call.begin(link)
            except StreamUnavailable:
                link.retire()
                self._waiting = waiting = {call: None, **waiting}
        for link in self._links:
            link.wanted = bool(waiting)
        if waiting and len(self._links) < LINKS_MAX:
            self._connect()

    def _may_try_again(self) -> bool:
        """Whether an attempt is due that does not begin by itself: with an `elsewhere` none does."""
        return self._connecting is None and self._around.clock.now_s() >= self._not_before_s()

    def _give_up(self, calls: tuple[Startable, ...]) -> None:
        for call in calls:
            if self._elsewhere is not None and not self._closed:
                self._elsewhere(call)
            else:
                call.fail(lost(f"no connection to {self._around.dialler.target}: {self._trouble}", sent=False))

    # -- connecting ----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._connecting is None and not self._closed:
            task = asyncio.get_running_loop().create_task(self._attempts(), name="http2-connect")
            self._connecting = task
            task.add_done_callback(self._attempts_over)

    def _attempts_over(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("connecting to %s failed", self._around.dialler.target, exc_info=error)
            self._failed(f"{type(error).__name__}")
        if self._waiting:
            self._serve()

    def _not_before_s(self) -> float:
        """When the next attempt may begin."""
        if not self._failures:
            return float("-inf")
        options = self._around.options
        pause_ms = min(options.reconnect_max_ms, options.reconnect_min_ms * _GROWTH ** min(self._failures - 1, 64))
        return self._attempt_s + pause_ms / 1000

    async def _attempts(self) -> None:
        """Until a connection stands; with an `elsewhere` only once."""
        around = self._around
        while not self._closed:
            pause_s = self._not_before_s() - around.clock.now_s()
            if self._failures:
                pause_s *= 1 + _JITTER * (2 * around.chance.random() - 1)
            if pause_s > 0:
                await asyncio.sleep(pause_s)
            self._attempt_s = around.clock.now_s()
            trouble = await self._attempt()
            if not trouble:
                return
            self._failed(trouble)
            if self._elsewhere is not None or self._links:
                return

    async def _attempt(self) -> str:
        """One. Returns what went wrong, "" if nothing did: then `link_opened` has been called."""
        around = self._around
        limit_ms = around.options.connect_timeout_ms
        links: list[Http2Link] = []

        def make() -> Http2Link:
            dialler = around.dialler
            link = Http2Link(
                self,
                dialler.authority,
                dialler.scheme,
                around.keepalive,
                around.clock,
                around.wheel,
                around.read_buffer,
            )
            links.append(link)
            return link

        around.tally.connects += 1
        trouble = ""
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await around.dialler.connect(make)
                trouble = await links[-1].opened
        except TimeoutError:
            trouble = f"it was not made within {limit_ms} ms"
        except (OSError, ValueError) as error:
            trouble = str(error) or type(error).__name__
        finally:
            for link in links:
                if link.opened_s is None:
                    link.abort(trouble or "the attempt to connect was given up")
        # Its time may have passed in the very turn in which the replica answered.
        return "" if links and links[-1].opened_s is not None else trouble

    def _failed(self, trouble: str) -> None:
        self._around.tally.connect_failures += 1
        self._failures += 1
        if not self._links:
            self._trouble = trouble
            waiting, self._waiting = tuple(self._waiting), {}
            self._give_up(waiting)

    # -- what links tell -----------------------------------------------------------------------------------------------

    def link_opened(self, link: Http2Link) -> None:
        if self._closed:  # its attempt was given up a moment ago
            link.abort("the connection is closed")
            return
        self._links[link] = None
        self._link = link
        self._trouble = ""
        self._serve()
        self._watch_idle()

    def link_has_room(self, link: Http2Link) -> None:
        self._serve()

    def link_leaves(self, link: Http2Link) -> None:
        if link in self._links:
            del self._links[link]
            self._leaving[link] = None
            if link.codec.peer_goaway is not None:
                self._around.tally.goaways += 1
            self._judge(link)
        if self._link is link:
            self._link = next(iter(self._links), None)
        if self._waiting and not self._closed:
            self._serve()

    def link_lost(self, link: Http2Link) -> None:
        self._leaving.pop(link, None)
        if not self._leaving and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def _judge(self, link: Http2Link) -> None:
        """One that held clears what was before; one that went soon counts as a failed attempt: to connect, lose and
        connect again without a pause would be an attack.
        """
        assert link.opened_s is not None
        held_s = self._around.clock.now_s() - link.opened_s
        if held_s * 1000 >= self._around.options.reconnect_max_ms:
            self._failures = 0
        else:
            self._failures += 1

    # -- connections that are not needed -------------------------------------------------------------------------------

    def _watch_idle(self) -> None:
        """All links of a channel with an `elsewhere`, and of others all but one, are closed when they are not used."""
        if self._idle_timer is None and (self._elsewhere is not None or len(self._links) > 1) and not self._closed:
            idle_s = self._around.options.bulk_idle_ms / 1000
            self._idle_timer = self._around.wheel.call_later(idle_s / 2, self._look_idle)

    def _look_idle(self) -> None:
        self._idle_timer = None
        now_s, keep = self._around.clock.now_s(), 0 if self._elsewhere is not None else 1
        for link in tuple(self._links):
            if link.codec.streams_open or link.used_since_look():
                link.idle_since_s = None
            elif link.idle_since_s is None:
                link.idle_since_s = now_s
            elif len(self._links) > keep and now_s - link.idle_since_s >= self._around.options.bulk_idle_ms / 1000:
                link.shut("it was not used")
        if self._links:
            self._watch_idle()

    # -- the end -------------------------------------------------------------------------------------------------------

    async def aclose(self, text: str) -> None:
        """What is out is told `text`. When it returns no connection is left, and no task."""
        self._closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        waiting, self._waiting = tuple(self._waiting), {}
        for call in waiting:
            call.fail(lost(text, sent=False))
        links = (*self._links, *self._leaving)
        for link in links:
            link.shut(text)
        connecting = self._connecting
        try:
            if connecting is not None:
                connecting.cancel()
                await asyncio.wait((connecting,))
            if self._leaving:
                # The transports write what they hold, if the replica takes it.
                if self._empty is None:
                    self._empty = asyncio.get_running_loop().create_future()
                await asyncio.wait((self._empty,), timeout=CLOSE_LIMIT_S)
        finally:
            for link in links:
                link.abort(text)

    @property
    def standing(self) -> bool:
        """Whether there is a connection on which calls can begin."""
        return bool(self._links)

    @property
    def links_open(self) -> int:
        """Connections that stand, those that are leaving included."""
        return len(self._links) + len(self._leaving)
