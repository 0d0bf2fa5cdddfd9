"""The body of one request: as it arrives, what it may take, and what becomes of it if it is compressed.

It is waited for where the service asks for it, and an `Expect: 100-continue` is granted there and nowhere else.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import BodyLimits
from gateway.edge.http_answer import Refusal
from gateway.edge.http_coding import arriving_bytes_max
from gateway.edge.http_kit import CallKit
from gateway.edge.http_words import HeadWords
from gateway.edge.inflating import InflatingBody, no_memory
from gateway.wire.kserve.http_filling import FillingRequest

FILL_BYTES_LEAST = 512 * 1024
"""Of a body from this size on each byte is put where it belongs as it comes. Smaller ones come in a few reads."""
UNKNOWN_MODEL_LIMITS = BodyLimits(64 * 1024, 64 * 1024)
"""The limit for a model that no policy names: its call is refused before the body matters."""


class BodySource(Protocol):
    """What a body needs of its connection."""

    def want_body(self, body: ArrivingBody) -> None:
        """The service waits for the body: read on, and grant what the client expects."""
        ...


class ArrivingBody:
    """The connection feeds it; who derives from it takes `_pieces` when `_arrive` has returned."""

    __slots__ = (
        "_arriving_max",
        "_body_bytes",
        "_complete",
        "_declared",
        "_done_with",
        "_fault",
        "_fill_at",
        "_filling",
        "_inflating",
        "_kit",
        "_named",
        "_outlet",
        "_pieces",
        "_reserved",
        "_waiter",
        "answered",
        "body_limit",
        "limits",
        "wanted",
        "words",
    )

    def __init__(
        self,
        kit: CallKit,
        outlet: BodySource,
        words: HeadWords,
        declared: int | None,
        limits: BodyLimits | None,
        fault: Refusal | None,
    ) -> None:
        """`declared` is the length of the body, None if that was not told; `limits` are the model's, None if no policy
        names it; `fault` is what is wrong with the head."""
        self._kit = kit
        self._outlet = outlet
        self.words = words
        self._declared = declared
        self._fault = fault
        self.limits = limits = limits or UNKNOWN_MODEL_LIMITS
        self._named = named = words.named
        # Without that header all of the body is JSON.
        self.body_limit = limits.body if named is not None else min(limits.body, limits.json)
        """Of the body as it is to be read: decompressed."""
        self._arriving_max = self.body_limit
        self._inflating: InflatingBody | None = None
        if words.deflated and fault is None:
            self._arriving_max = arriving_bytes_max(self.body_limit)
            self._inflating = InflatingBody(kit.coding.workers, kit.budget, self.body_limit, self._bomb)
        self.answered = False
        self.wanted = False
        self._pieces: list[bytes | memoryview] = []
        self._filling: FillingRequest | None = None
        """Takes what comes, in the place of `_pieces`."""
        self._fill_at = 0
        """When so much of the body is there it is begun; 0 for never."""
        self._body_bytes = 0
        self._reserved = 0
        self._complete = False
        self._done_with = False
        """The call has ended: what still comes of its body, before its answer has its turn, is nobody's."""
        self._waiter: asyncio.Future[None] | None = None

    @property
    def waits_for_client(self) -> bool:
        """Whether it is the client's turn: it has been asked for the body if it wants to be, and the body is good so
        far.
        """
        return self._fault is None and (self.wanted or not self.words.expects)

    @property
    def held_bytes(self) -> int:
        """Body bytes that wait for the service to want them."""
        return 0 if self.wanted else self._body_bytes

    def feed(self, data: bytes | memoryview) -> None:
        """Part of the body."""
        if self._fault is not None or self.answered or self._done_with:
            return
        size = self._body_bytes + len(data)
        self._body_bytes = size
        if size > self._arriving_max:
            self.fail_body(self._too_large(f"the body has more than {self._arriving_max} bytes"))
        elif size > self._reserved and not self._reserve(size):
            self.fail_body(no_memory())
        elif self._filling is not None:
            self._filling.put(data)
        else:
            self._pieces.append(data)
            if self._inflating is not None:
                wake(self._waiter)
            elif self._fill_at and size >= self._fill_at:
                self._begin_filling()

    def take_whole(self, data: bytes | memoryview) -> None:
        """All of the body, before anything else has happened: `feed` and `end_body` in one."""
        size = len(data)
        if self._inflating is not None or size > self._arriving_max:
            self.feed(data)
        elif size and self._kit.budget.try_reserve(size):
            self._reserved = self._body_bytes = size
            self._pieces.append(data)
        elif size:
            self.fail_body(no_memory())
        self._complete = True

    def place(self, size: int) -> memoryview | None:
        """Where some of the next `size` bytes, which are not the last ones, can be received to, so that they need not
        be copied; None if there is no such place. Say `placed` then.
        """
        return None if self._filling is None or self.answered else self._filling.place(size)

    def placed(self, size: int) -> None:
        """So many bytes of the body have been received to the last place."""
        assert self._filling is not None
        self._body_bytes += size
        self._filling.placed(size)

    def end_body(self) -> None:
        """The body is complete."""
        self._complete = True
        if self._waiter is not None:  # nobody waits for a body that comes with its head
            wake(self._waiter)

    def fail_body(self, error: GatewayError, status: int = 0) -> None:
        """The body will not come, or not be kept: `receive` raises `error`. The first one counts. `status` is the HTTP
        status, 0 for the error's own.
        """
        if self._fault is None:
            self._fault = Refusal(error, status)
            self._drop()
            wake(self._waiter)

    async def _arrive(self) -> None:
        """Wait until `_filling`, or else `_pieces`, are the whole body, decompressed. Raises what is wrong with it."""
        declared = self._declared
        if declared is not None and self._fault is None:
            if declared > self._arriving_max:
                self.fail_body(self._too_large(f"the body has {declared} bytes"))
            elif declared > self._reserved and not self._reserve(declared):
                self.fail_body(no_memory())
        if not self._complete and self._fault is None:
            self.wanted = True
            if declared is not None and declared >= FILL_BYTES_LEAST and self._inflating is None:
                self._fill_at = self._json_bytes(declared)
                if self._fill_at and self._body_bytes >= self._fill_at:
                    self._begin_filling()
            self._outlet.want_body(self)
        if self._inflating is not None:
            await self._inflate(self._inflating)
        while not self._complete and self._fault is None:
            await self._more()
        if self._fault is not None:
            raise self._fault.error

    async def _more(self) -> None:
        """Wait until something has happened to the body."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def _inflate(self, inflating: InflatingBody) -> None:
        """Put the decompressed body in the place of the one that arrives, as it arrives. What is wrong with it fails
        the body.
        """
        try:
            while self._fault is None:
                pieces, self._pieces = self._pieces, []
                await inflating.add(pieces)
                if self._pieces or self._fault is not None:
                    continue
                if self._complete:
                    inflating.end()
                    self._pieces = list(inflating.pieces)
                    self._kit.budget.release(self._reserved)  # the compressed bytes are gone
                    self._reserved = 0
                    return
                await self._more()
        except GatewayError as error:
            self.fail_body(error)

    def _json_bytes(self, declared: int) -> int:
        """So many bytes of a body of `declared` bytes tell where the others belong; 0 if none do."""
        return 0

    def _begin_filling(self) -> None:
        """So much is there. All of the body is reserved."""
        raise NotImplementedError

    def _bomb(self) -> GatewayError:
        return self._too_large(f"the body decompresses to more than {self.body_limit} bytes")

    def _reserve(self, size: int) -> bool:
        if not self._kit.budget.try_reserve(size - self._reserved):
            return False
        self._reserved = size
        return True

    def _drop(self) -> None:
        """Nothing of the body is kept."""
        self._pieces.clear()
        self._filling = None
        self._fill_at = 0
        self._release()

    def _release(self) -> None:
        if self._reserved:
            self._kit.budget.release(self._reserved)
            self._reserved = 0
        if self._inflating is not None:
            self._inflating.close()
            self._inflating = None  # it knows this call: a circle

    def _too_large(self, what: str) -> GatewayError:
        if self._named is None and self.body_limit < self.limits.body:
            return GatewayError(Reason.TOO_LARGE, f"{what}, all of it JSON; {self._json_takes()}")
        return GatewayError(Reason.TOO_LARGE, f"{what}; this model takes at most {self.body_limit}")

    def _json_takes(self) -> str:
        return f"this model takes at most {self.limits.json} of JSON: send large tensors as binary data"


def wake(waiter: asyncio.Future[None] | None) -> None:
    """Let whoever waits go on."""
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
