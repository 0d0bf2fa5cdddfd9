"""`host:port` as policies write it: what is wrong with one, and whether two of them are the same place."""

from __future__ import annotations

import ipaddress
import re

_SHAPE = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_WILDCARDS = frozenset({"0.0.0.0", "::"})
_LOOPBACK = frozenset({"localhost", "::1"})


def fault(text: str) -> tuple[str, str] | None:
    """What is wrong with a `host:port`, and the remedy; None if it is good. Names are not looked up."""
    if "://" in text:
        return "a URL, not an address", f"write `{text.partition('://')[2].rstrip('/') or 'host:port'}`"
    match = _SHAPE.fullmatch(text)
    if match is None:
        if text.count(":") > 1 and not text.startswith("["):
            return "not `host:port`", "put an IPv6 address in brackets, as in `[::1]:8001`"
        if ":" not in text:
            return "the port is missing", f"write `{text}:8001`, with the right port"
        if text.startswith(":"):
            return "the host is missing", f"write `127.0.0.1{text}`, or `0.0.0.0{text}` to listen everywhere"
        return "not `host:port`", "write as in `10.0.0.7:8001`"
    if not 1 <= int(match[2]) <= 65535:
        return f"port {int(match[2])} is out of range", "ports go from 1 to 65535"
    return _host_fault(match[1])


def _host_fault(host: str) -> tuple[str, str] | None:
    bracketed = host.startswith("[")
    if bracketed or re.fullmatch(r"[0-9.]+", host):
        try:
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return f"`{host}` is not an IP address", "write as in `10.0.0.7:8001` or `[::1]:8001`"
        if bracketed and address.version == 4:
            return "an IPv4 address in brackets", "leave the brackets out"
        return None
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.rstrip(".").split(".")):
        return f"`{host[:60]}` is not a host name", "labels are letters, digits and dashes between dots"
    return None


def normal(text: str) -> tuple[str, int]:
    """(host, port) in one spelling. `text` must be good."""
    host, _, port = text.rpartition(":")
    host = host.strip("[]").lower().rstrip(".")
    if ":" in host:
        host = str(ipaddress.ip_address(host))
    return host, int(port)


def clash(one: str, other: str) -> bool:
    """Two listeners, or a listener and a replica on this machine, that mean the same port: a wildcard takes every
    address of the machine, of which only loopback can be recognised here.
    """
    (host, port), (other_host, other_port) = normal(one), normal(other)
    if port != other_port:
        return False
    if host in _WILDCARDS and other_host in _WILDCARDS:
        return True
    return host == other_host or (host in _WILDCARDS and _local(other_host)) or (_local(host) and _local(other_host))


def listeners_clash(one: str, other: str) -> bool:
    """Two addresses that one process cannot both listen on: equal ports, and hosts equal or one of them a wildcard."""
    (host, port), (other_host, other_port) = normal(one), normal(other)
    return port == other_port and (host == other_host or host in _WILDCARDS or other_host in _WILDCARDS)


def _local(host: str) -> bool:
    return host in _LOOPBACK or host.startswith("127.")
