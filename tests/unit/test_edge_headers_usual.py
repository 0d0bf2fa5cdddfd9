"""The quick reading of a request's headers: it says what the careful one says, or nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.credentials import NO_PEER, Credentials, Peer
from gateway.edge.headers import ClientHeaders, HeaderReader

Pairs = list[tuple[bytes, bytes]]

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NAMES = st.sampled_from(
    [
        *(b"x-request-id", b"x-request-timeout-ms", b"traceparent", b"tracestate", b"x-api-key", b"authorization"),
        *(
            b"connection",
            b"x-sluice-explain",
            b"x-sluice-version",
            b"x-sluice-priority",
            b"x-tenant",
            b"host",
            b"content-type",
            b"accept",
        ),
        *(b"x-one", b"x-two", b"x-data-bin", b"x*odd", b"keep-alive", b"cookie", b"user-agent"),
    ]
)
VALUES = st.one_of(
    st.sampled_from(
        [
            *(b"", b"1", b"0", b"2000", b"r-1", b"keep-alive", b"Keep-Alive", b"close", b"x-one", b"x-one, keep-alive"),
            *(b"critical_plus", b"critical", b"sheddable_plus", b"sheddable", b"Critical", b"critical "),
            *(b"Bearer abc", b"bearer  abc ", b"Basic abc", b"Bearer", b"86400001", b"a=1", b"a=1,b=2", b"a", b"\xe9"),
            *(PARENT, PARENT[:-1], PARENT.upper(), PARENT.replace(b"00-", b"01-"), PARENT + b"-x", b"r" * 129),
            *(b"00-" + b"0" * 32 + PARENT[35:], PARENT[:36] + b"0" * 16 + b"-01", b"x" * 13_000, "²".encode("latin-1")),
        ]
    ),
    st.binary(max_size=12),
)
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=8)
FORWARDS = st.sampled_from([("*",), (), ("x-*",), ("x-one", "x-request-id")])


def told(headers: ClientHeaders) -> tuple[object, ...]:
    """What can be compared: errors have no equality."""
    fault = None if headers.fault is None else (headers.fault.reason, headers.fault.message)
    return (
        headers.request_id,
        headers.timeout_s,
        headers.credentials,
        headers.explain,
        headers.metadata,
        headers.priority,
        headers.dropped,
        fault,
    )


def careful(reader: HeaderReader, pairs: Pairs, peer: Peer = NO_PEER) -> ClientHeaders:
    return reader.read([(name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs], peer)


@given(PAIRS, FORWARDS, st.sampled_from(["", "x-tenant"]), st.sampled_from([NO_PEER, Peer("10.0.0.1")]))
def test_it_says_what_the_careful_reading_says(
    pairs: Pairs, forward: tuple[str, ...], identity_header: str, peer: Peer
) -> None:
    quick = HeaderReader(forward, random.Random(3), identity_header)
    slow = HeaderReader(forward, random.Random(3), identity_header)
    for _ in range(2):  # the second time from memory
        assert told(quick.read_bytes(pairs, peer)) == told(careful(slow, pairs, peer))


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [(b"host", b"x"), (b"content-length", b"5"), (b"connection", b"keep-alive")],
        [(b"x-request-id", b"r-1"), (b"x-request-timeout-ms", b"2000"), (b"traceparent", PARENT)],
        [(b"traceparent", PARENT), (b"tracestate", b"a=1"), (b"x-one", b"1"), (b"x-one", b"2")],
        [(b"x-api-key", b"k")],
        [(b"authorization", b"Bearer t")],
        [(b"x-sluice-priority", b"critical_plus"), (b"x-request-id", b"r-1")],
        [(b"x-sluice-priority", b"sheddable")],
    ],
)
def test_what_callers_mostly_send_is_read_quickly(pairs: Pairs) -> None:
    reader = HeaderReader(("*",), random.Random(3))
    found = reader.usual(pairs, NO_PEER)
    assert found is not None
    assert told(found) == told(careful(HeaderReader(("*",), random.Random(3)), pairs))


def test_a_key_is_of_the_peer_that_shows_it() -> None:
    reader = HeaderReader((), random.Random(3))
    peer = Peer("10.0.0.1")
    assert reader.read_bytes([(b"x-api-key", b"k")], peer).credentials == Credentials("k", peer=peer)
    assert reader.read_bytes([(b"authorization", b"bearer t")], peer).credentials == Credentials(bearer="t", peer=peer)


def test_what_is_remembered_of_names_and_time_outs_is_bounded() -> None:
    reader = HeaderReader(("*",), random.Random(3))
    for number in range(1, 3000):
        reader.read_bytes([(b"x-%d" % number, b"1"), (b"x-request-timeout-ms", b"%d" % number)])
    reader.read_bytes([(b"x-" + b"n" * 100, b"1")])
    assert len(reader._places) <= 1024
    assert len(reader.timeouts_s) <= 1024
    assert max(map(len, reader._places)) <= 64
