"""The admin port: `/v1/fleet`, for whoever has the token; and the start and end of both operators' ports.

Three doors, in this order. Host must name this machine or the address listened on, so that a web page cannot reach the
port through a name of its own that resolves to 127.0.0.1. An Origin, which only browsers send, must be this very
address. Then the token, always.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from gateway.admin.fleet import FleetState, fleet_document, json_bytes
from gateway.admin.health import metrics_app
from gateway.admin.listen import Listener, is_loopback
from gateway.admin.token import same
from gateway.runtime.listen import split_address
from gateway.runtime.workers import Workers

_log = logging.getLogger("sluice.admin")
_BODY_BYTES_MAX = 64 * 1024
_UNSPECIFIED = ("0.0.0.0", "::", "")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def admin_app(
    *,
    token: str,
    listen_host: str,
    fleet: Callable[[], FleetState],
    metrics_id: Callable[[str], str],
    workers: Workers,
) -> web.Application:
    """The application of the admin port. `fleet` is called on the loop and must be cheap; the document is made by a
    worker.
    """

    @web.middleware
    async def doors(request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = _refused(request, listen_host, token)
        if refusal is not None:
            return _once(refusal)
        try:
            return _once(await handler(request))
        except web.HTTPException as error:
            return _once(_http_error(error))
        except Exception:
            _log.exception("the admin request %s %s failed", request.method, request.path[:200])
            return _once(_error(500, "an unexpected error; the gateway's log has it"))

    async def show_fleet(request: web.Request) -> web.Response:
        state = fleet()
        body = await workers.run(lambda: fleet_document(state, metrics_id))
        return web.Response(body=body, content_type="application/json")

    app = web.Application(middlewares=[doors], client_max_size=_BODY_BYTES_MAX)
    app.router.add_get("/v1/fleet", show_fleet)
    return app


class AdminServers:
    """Both operators' ports, open."""

    def __init__(self, metrics: Listener, admin: Listener) -> None:
        self._metrics = metrics
        self._admin = admin

    @property
    def metrics_port(self) -> int:
        return self._metrics.port

    @property
    def admin_port(self) -> int:
        return self._admin.port

    async def aclose(self) -> None:
        """Close both; what is open ends within a second."""
        try:
            await self._admin.aclose()
        finally:
            await self._metrics.aclose()


async def start(
    *,
    metrics_address: str,
    admin_address: str,
    token: str,
    page: Callable[[], Awaitable[bytes]],
    ready: Callable[[], bool],
    fleet: Callable[[], FleetState],
    metrics_id: Callable[[str], str],
    workers: Workers,
) -> AdminServers:
    """Open both ports. Raises `ListenError`, and then has opened none."""
    metrics = await Listener.start(metrics_app(page, ready), metrics_address, "gateway.listen.metrics")
    try:
        host, _ = split_address(admin_address)
        app = admin_app(token=token, listen_host=host, fleet=fleet, metrics_id=metrics_id, workers=workers)
        admin = await Listener.start(app, admin_address, "gateway.listen.admin")
    except BaseException:
        await metrics.aclose()
        raise
    if not is_loopback(host):
        _log.warning("the admin port listens on %s, which other machines can reach; its traffic is not encrypted", host)
    return AdminServers(metrics, admin)


def _refused(request: web.Request, listen_host: str, token: str) -> web.Response | None:
    hosts = request.headers.getall("Host", [])
    if len(hosts) != 1 or not host_allowed(hosts[0], listen_host):
        return _error(403, "the Host header names another machine: call this port by its own address")
    for origin in request.headers.getall("Origin", []):
        if origin.lower() != f"http://{hosts[0].lower()}":
            return _error(403, "requests from other web pages are refused")
    credentials = request.headers.getall("Authorization", [])
    scheme, _, given = credentials[0].partition(" ") if len(credentials) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not same(given.strip(), token):
        refusal = _error(401, "send the token of <state_dir>/admin-token as `authorization: Bearer <token>`")
        refusal.headers["www-authenticate"] = 'Bearer realm="sluice admin"'
        return refusal
    return None


def host_allowed(host_header: str, listen_host: str) -> bool:
    """Whether a Host header names this machine: loopback, or the host that is listened on. Where all addresses are, any
    literal address is good too: rebinding needs a name. The port does not matter (tunnels change it).
    """
    host = _without_port(host_header.strip().lower())
    if host is None:
        return False
    if is_loopback(host) or host == listen_host.lower():
        return True
    if listen_host not in _UNSPECIFIED:
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _without_port(host: str) -> str | None:
    """The host of `host[:port]`, without brackets; None if it is malformed."""
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        if not bracket or (rest and not (rest[0] == ":" and rest[1:].isdecimal())):
            return None
        return name
    name, colon, port = host.partition(":")
    return None if colon and not port.isdecimal() else name


def _once(response: web.StreamResponse) -> web.StreamResponse:
    response.force_close()
    response.headers["cache-control"] = "no-store"
    response.headers["x-content-type-options"] = "nosniff"
    return response


def _error(status: int, text: str) -> web.Response:
    return web.Response(status=status, body=json_bytes({"error": text}), content_type="application/json")


def _http_error(error: web.HTTPException) -> web.Response:
    texts = {
        404: "no such path; there is GET /v1/fleet",
        405: "this path takes no such method",
        413: "the body is too large",
    }
    response = _error(error.status, texts.get(error.status, error.reason.lower()))
    if "Allow" in error.headers:
        response.headers["allow"] = error.headers["Allow"]
    return response
