"""The metrics port: `/metrics`, `/healthz`, `/readyz`. Nothing on it names an address or a tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector

from gateway.observe.metrics import Metrics
from gateway.runtime.clock import Clock
from gateway.runtime.workers import Workers

CACHE_S = 0.5
"""A page is at most this old, and made at most this often."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPage:
    """Makes the page: collected on the loop, written out by a worker, kept for `CACHE_S`, made once for all who wait.

    `breathe` is called between metrics, in the worker.
    """

    def __init__(
        self, metrics: Metrics, clock: Clock, workers: Workers, *, breathe: Callable[[], None] | None = None
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._workers = workers
        self._breathe = breathe
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        self._page = b""
        self._made_s = float("-inf")
        self._making: asyncio.Task[bytes] | None = None

    async def get(self) -> bytes:
        """The page in Prometheus's text format."""
        if self._clock.now_s() - self._made_s < CACHE_S:
            return self._page
        if self._making is None:
            self._making = asyncio.get_running_loop().create_task(self._make(), name="sluice:metrics-page")
            self._making.add_done_callback(self._made)
        # A scraper that goes away must not take the page from the others.
        return await asyncio.shield(self._making)

    async def _make(self) -> bytes:
        frozen = self._metrics.freeze(self._clock.now_s())
        self._page = await self._workers.run(lambda: frozen.render(self._registry, self._breathe))
        self._made_s = self._clock.now_s()
        return self._page

    def _made(self, task: asyncio.Task[bytes]) -> None:
        self._making = None
        if not task.cancelled():
            task.exception()  # whoever waits gets it; if all of them left, nobody has to


def metrics_app(page: Callable[[], Awaitable[bytes]], ready: Callable[[], bool]) -> web.Application:
    """The application of the metrics port. `ready` tells whether the gateway can serve; false while it drains."""

    async def metrics(request: web.Request) -> web.Response:
        return _once(web.Response(body=await page(), headers={"content-type": CONTENT_TYPE}))

    async def healthz(request: web.Request) -> web.Response:
        return _once(web.Response(text="alive\n"))

    async def readyz(request: web.Request) -> web.Response:
        if ready():
            return _once(web.Response(text="ready\n"))
        return _once(web.Response(status=503, text="not ready\n"))

    app = web.Application(middlewares=[plain_errors], client_max_size=1024)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    return app


def _once(response: web.Response) -> web.Response:
    response.force_close()
    response.headers["cache-control"] = "no-store"
    return response


@web.middleware
async def plain_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """404 and 405 in one word, and nothing about the inside in a 500 (aiohttp logs it)."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        response = web.Response(status=error.status, text=f"{error.reason.lower()}\n")
        if "Allow" in error.headers:
            response.headers["allow"] = error.headers["Allow"]
        return _once(response)
