"""The connections to one replica: one for what is small, and where it is needed one for what is large.

A kernel holds megabytes of a large tensor that it was given, and whatever is written behind them waits. So messages
over a bound go over a connection of their own, made when the first of them comes and closed when there were none for a
while; where it cannot be had they go with the others.
"""

from __future__ import annotations

import random

from gateway.core.restraint import Free, Restraint
from gateway.fleet.http2_answer import Unpacker
from gateway.fleet.http2_channel import Http2Channel, Http2Options, Startable, Surroundings, Tally
from gateway.fleet.http2_dial import Dialler
from gateway.fleet.http2_link import Keepalive
from gateway.runtime.clock import Clock
from gateway.runtime.wheel import TimerWheel
from gateway.runtime.workers import Workers


class Http2Links:
    """All connections of one client."""

    __slots__ = (
        "bulk",
        "bulk_bytes",
        "keepalive",
        "left",
        "main",
        "message_max",
        "now_s",
        "restraint",
        "tally",
        "unpacker",
        "wheel",
    )

    def __init__(
        self,
        dialler: Dialler,
        options: Http2Options,
        *,
        clock: Clock,
        wheel: TimerWheel,
        chance: random.Random,
        workers: Workers,
    ) -> None:
        """`workers` unpack compressed messages."""
        self.tally = Tally()
        self.keepalive = Keepalive(options.keepalive_ms / 1000, options.keepalive_timeout_ms / 1000)
        self.wheel = wheel
        self.now_s = clock.now_s
        self.message_max = options.message_bytes_max
        self.unpacker = Unpacker(options.message_bytes_max, workers)
        around = Surroundings(dialler, options, self.keepalive, self.tally, clock, wheel, chance)
        self.main = Http2Channel(around)
        self.bulk = Http2Channel(around, elsewhere=self._with_the_others)
        """For messages over `bulk_bytes`."""
        self.bulk_bytes = options.bulk_bytes
        self.restraint: Restraint = Free()
        self.left = 0
        """Calls that were given up and run out now."""

    def _with_the_others(self, call: Startable) -> None:
        call.channel = self.main
        self.main.start(call)

    @property
    def standing(self) -> bool:
        """Whether there is a connection on which calls can begin."""
        return self.main.standing

    @property
    def open(self) -> int:
        """Connections in all, those that are leaving included."""
        return self.main.links_open + self.bulk.links_open

    async def aclose(self, text: str) -> None:
        """What is out is told `text`. When it returns nothing is left."""
        try:
            await self.bulk.aclose(text)
        finally:
            await self.main.aclose(text)
