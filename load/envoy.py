"""Envoy as a peer: a route to the same Triton for each protocol, with retries, time-outs and health checks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.local import Ports
from load.child import Child

HTTP_OPTIONS = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
MANAGER = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"


def configuration(ports: Ports, *, triton_http: str, triton_grpc: str, deadline_ms: int) -> dict[str, Any]:
    """Envoy's configuration. `ports.metrics` is its admin port.

    No access log and no statistics sink: what is measured is routing alone, which favours Envoy, as Sluice writes its
    records meanwhile.
    """
    return {
        "admin": {"address": address("127.0.0.1", ports.metrics)},
        "static_resources": {
            "listeners": [
                _listener("http", ports.http, "HTTP1", deadline_ms),
                _listener("grpc", ports.grpc, "HTTP2", deadline_ms),
            ],
            "clusters": [
                _cluster("http", triton_http, {"http_protocol_options": {}}, triton_http),
                _cluster("grpc", triton_grpc, {"http2_protocol_options": {}}, triton_http),
            ],
        },
    }


def start(
    binary: Path, directory: Path, ports: Ports, *, triton_http: str, triton_grpc: str, deadline_ms: int, workers: int
) -> Child:
    """Start Envoy with `workers` worker threads. It is not waited for."""
    settings = configuration(ports, triton_http=triton_http, triton_grpc=triton_grpc, deadline_ms=deadline_ms)
    return start_with(binary, directory, settings, workers)


def start_with(binary: Path, directory: Path, settings: Mapping[str, Any], workers: int) -> Child:
    """Start Envoy with these settings. It is not waited for. The file and the log are in `directory`."""
    file = directory / "envoy.json"
    file.write_text(json.dumps(settings, indent=1), encoding="utf-8")
    argv = [str(binary), "-c", str(file), "--concurrency", str(workers), "--disable-hot-restart"]
    return Child("envoy", [*argv, "--log-level", "warning"], log=directory / "envoy.log", cwd=directory)


def address(host: str, port: int) -> dict[str, Any]:
    """A socket address as Envoy writes it."""
    return {"socket_address": {"address": host, "port_value": port}}


def _listener(name: str, port: int, codec: str, deadline_ms: int) -> dict[str, Any]:
    route: dict[str, Any] = {
        "cluster": name,
        "timeout": f"{deadline_ms / 1000:g}s",
        "retry_policy": {"retry_on": "connect-failure,refused-stream,unavailable,503", "num_retries": 1},
    }
    if name == "grpc":
        route["max_stream_duration"] = {"grpc_timeout_header_max": f"{deadline_ms / 1000:g}s"}
    manager = {
        "@type": MANAGER,
        "stat_prefix": name,
        "codec_type": codec,
        "preserve_external_request_id": True,
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": ROUTER}}],
        "route_config": {
            "virtual_hosts": [{"name": name, "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}]
        },
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    return {"name": name, "address": address("127.0.0.1", port), "filter_chains": [chain]}


def _cluster(name: str, upstream: str, protocol: dict[str, Any], health_address: str) -> dict[str, Any]:
    host, _, port = upstream.rpartition(":")
    health_host, _, health_port = health_address.rpartition(":")
    endpoint = {
        "address": address(host, int(port)),
        # Triton's health is asked over HTTP for both, as Envoy's gRPC check needs a service that Triton lacks.
        "health_check_config": {"address": address(health_host, int(health_port))},
    }
    options = {"@type": HTTP_OPTIONS, "explicit_http_config": protocol}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "lb_policy": "LEAST_REQUEST",
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}]},
        "health_checks": [
            {
                "timeout": "0.5s",
                "interval": "0.5s",
                "unhealthy_threshold": 2,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/v2/health/ready", "codec_client_type": "HTTP1"},
            }
        ],
    }
