"""The request line: method, target, version."""

from __future__ import annotations

import re

from gateway.wire.http1.events import Refusal

_METHODS = rb"GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|TRACE"
_TARGET = rb"/[!\"$-~]*"  # visible ASCII without `#`
AUTHORITY = rb"(?:[A-Za-z0-9\-._~!$&'()*+;=%]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?"

# The common form, with method, target and minor version as groups.
ORIGIN_FORM_LINE = re.compile(rb"(" + _METHODS + rb") (" + _TARGET + rb") HTTP/1\.([01])")

_KNOWN_METHOD = re.compile(_METHODS)
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VERSION = re.compile(rb"HTTP/([0-9])\.([0-9])")
_ABSOLUTE = re.compile(rb"(?i:https?)://" + AUTHORITY + rb"((?:[/?][!\"$-~]*)?)")


def request_line(line: bytes) -> tuple[bytes, bytes, int]:
    """Method, target in origin-form (or `*`) and minor version of a line without its CRLF. Raises Refusal."""
    parts = line.split(b" ")
    if len(parts) != 3:
        raise Refusal(400, "the request line must be: method, target, HTTP version, with single spaces between")
    method, target, protocol = parts
    version = _VERSION.fullmatch(protocol)
    if _TOKEN.fullmatch(method) is None or version is None:
        raise Refusal(400, "the method or the HTTP version of the request line is malformed")
    major, minor = version.groups()
    if major != b"1" or minor > b"1":
        if method == b"PRI":
            raise Refusal(505, "this port speaks HTTP/1.1, not HTTP/2; gRPC has a port of its own")
        raise Refusal(505, "the HTTP versions served are 1.0 and 1.1")
    if _KNOWN_METHOD.fullmatch(method) is None:
        raise Refusal(501, "the request method is not implemented")
    if target.startswith(b"/") and ORIGIN_FORM_LINE.fullmatch(line) is not None:
        return method, target, int(minor)
    if target == b"*" and method == b"OPTIONS":
        return method, target, int(minor)
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise Refusal(400, "the request target must be a path that starts with / and holds visible ASCII only")
    rest = absolute.group(1)
    return method, rest if rest.startswith(b"/") else b"/" + rest, int(minor)
