"""Heads that differ only in the values of some fields: a request's id, its time limit, its trace, its class.

The codec recognises them (`gateway.wire.hpack.Layout`). What the first of them said is kept, and of the others only
these values are read. `HeadReader` reads in full what does not fit, so nothing is decided here that it would decide
otherwise.
"""

from __future__ import annotations

from gateway.core.header_names import PRIORITY, REQUEST_ID, TRACEPARENT
from gateway.edge.grpc_kit import least
from gateway.edge.grpc_rpc_head import GRPC_TIMEOUT, READ_HERE, REQUEST_ID_NAME, RpcHead
from gateway.edge.headers import CLASS_OF_BYTES, PLAIN_PARENT, ClientHeaders, HeaderReader
from gateway.wire.grpc.errors import GrpcFault
from gateway.wire.grpc.timeout import parse_timeout
from gateway.wire.hpack import Layout

Fields = tuple[tuple[bytes, bytes], ...]

OF_THE_KIND = frozenset({b":method", b":path", b"content-type"})
"""Fields that say what kind of RPC it is."""
METADATA_CHARS_MAX = 1024
"""A head with more to go on gets no plan: a connection has up to 16, and a byte that stands for an entry of its table
makes 4,000 characters.
"""
NO_PLAN = "no plan"
"""Stands where a layout has none."""

_PARENT, _PRIORITY = TRACEPARENT.encode(), PRIORITY.encode()
_KNOWN = frozenset({REQUEST_ID_NAME, GRPC_TIMEOUT, _PARENT, _PRIORITY})


class HeadPlan:
    """Reads the heads of one layout by the first of them. Places are -1 for what does not vary or is not there."""

    __slots__ = ("_first", "_id_at", "_id_goes", "_parent_at", "_parent_goes", "_priority_at", "_rpc_timeout_s",
                 "_timeout", "_timeout_at", "_timeout_s", "_varies")  # fmt: skip

    def __init__(self, first: RpcHead, names: tuple[bytes, ...]) -> None:
        """`names` are those of the values that vary."""
        forwarded = tuple(name for name, _ in first.headers.metadata)
        self._first = first
        self._id_at = _place(REQUEST_ID_NAME, names)
        self._timeout_at = _place(GRPC_TIMEOUT, names)
        self._parent_at = _place(_PARENT, names)
        self._priority_at = _place(_PRIORITY, names)
        self._id_goes = _place(REQUEST_ID, forwarded) if self._id_at >= 0 else -1
        self._parent_goes = _place(TRACEPARENT, forwarded) if self._parent_at >= 0 else -1
        self._timeout = b""
        """The value of `grpc-timeout` that came last, and what it makes of the two limits."""
        self._timeout_s, self._rpc_timeout_s = first.timeout_s, first.rpc_timeout_s
        self._varies = self._id_goes >= 0 or self._parent_goes >= 0

    def read(self, values: tuple[bytes, ...]) -> RpcHead | None:
        """What a head says whose varying values are these; None if that is for `HeadReader` to say. All lengths are
        those of the first head, so no limit is passed that it has not passed.
        """
        first = self._first
        headers = first.headers
        request_id, metadata, priority = headers.request_id, headers.metadata, headers.priority
        if self._id_at >= 0:
            value = values[self._id_at]
            request_id = value.decode("latin-1")
            if not value.isascii() or not request_id.isprintable():
                return None
        if self._priority_at >= 0:
            priority = CLASS_OF_BYTES.get(values[self._priority_at])
            if priority is None:
                return None
        if self._timeout_at >= 0 and values[self._timeout_at] != self._timeout:
            try:
                self._rpc_timeout_s = parse_timeout(values[self._timeout_at])
            except GrpcFault:
                return None
            self._timeout = values[self._timeout_at]
            self._timeout_s = least(headers.timeout_s, self._rpc_timeout_s)
        if self._varies:
            kept = list(metadata)
            if self._id_goes >= 0:
                kept[self._id_goes] = (REQUEST_ID, request_id)
            if self._parent_goes >= 0:
                parent = values[self._parent_at]
                if PLAIN_PARENT.fullmatch(parent) is None:
                    return None
                kept[self._parent_goes] = (TRACEPARENT, parent.decode())
            metadata = tuple(kept)
        return RpcHead(
            first.kind,
            first.method,
            ClientHeaders(request_id, headers.timeout_s, headers.credentials, headers.explain, metadata, priority),
            first.named,
            self._timeout_s,
            self._rpc_timeout_s,
            first.encoding,
            first.true_status,
        )


def plan_of(first: RpcHead, layout: Layout, fields: Fields, reader: HeaderReader) -> HeadPlan | str | None:
    """The plan by `first`, which is what `fields` of this layout say; `NO_PLAN` if other values vary than those that a
    plan knows; None if there is something unusual about the first, and the next may be better.
    """
    names, headers = layout.names, first.headers
    told = [name for name, _ in fields]
    for name in names:
        if name in _KNOWN:
            if told.count(name) > 1 or reader.claims(name):  # of these the policy lets none name the tenant
                return NO_PLAN
        elif name in READ_HERE or name in OF_THE_KIND or reader.takes(name):
            return NO_PLAN
    if first.fault is not None or headers.fault is not None or headers.dropped:
        return None
    if sum(len(name) + len(value) for name, value in headers.metadata) > METADATA_CHARS_MAX:
        return NO_PLAN
    if REQUEST_ID_NAME in names and not first.named:
        return None
    if _PARENT in names and not any(name == TRACEPARENT for name, _ in headers.metadata):
        return None
    return HeadPlan(first, names)


def _place(name: str | bytes, names: tuple[str, ...] | tuple[bytes, ...]) -> int:
    return names.index(name) if name in names else -1
