"""Client-facing headers, both ways, for every protocol: HTTP headers and gRPC metadata are the same pairs here.

In: what the caller may tell the gateway, checked, and what of the rest goes on to Triton. Out: what every response
says about how it was made. Names are lower case throughout.
"""

from __future__ import annotations

import random
import re
import urllib.parse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.core.call import Call, Metadata
from gateway.core.credentials import NO_CREDENTIALS, NO_PEER, Credentials, Peer
from gateway.core.criticality import CLASS_OF, WORDS
from gateway.core.errors import GatewayError, Reason
from gateway.core.header_names import (
    API_KEY,
    EXPLAIN,
    PRIORITY,
    REQUEST_ID,
    TIMEOUT_MS,
    TRACEPARENT,
    TRACESTATE,
    never_forwarded,
)

Pairs = Iterable[tuple[str, str]]

REQUEST_ID_CHARS_MAX = 128
TIMEOUT_MS_MAX = 86_400_000
MODEL_CHARS_MAX = 255
"""No model has a longer name, and over gRPC a caller's may be as long as a message: it would not fit any header."""
FORWARD_BYTES_MAX = 7 * 1024
"""Forwarded names and values, counted as gRPC does (plus 32 a pair). Triton's gRPC server refuses some requests from
8 KiB on, the more the larger, and all from 16; the gateway says so itself, in the caller's terms, and leaves room for
what it adds."""

NOT_YET = ("x-sluice-min-rung", "x-sluice-version")
"""Wishes that layers of a later set will grant. Refused by name: an ignored wish for a version would be answered by
another version."""

_NAME = re.compile(r"[0-9a-z_.-]+\Z")
_VALUE = re.compile(r"[\x20-\x7e]+\Z")
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?\Z")
_STATE_MEMBER = re.compile(
    r"(?:[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13}|[a-z][a-z0-9_*/-]{0,255})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]\Z"
)
_STATE_MEMBERS_MAX = 32
_STATE_CHARS_MAX = 4096


@dataclass(slots=True)
class ClientHeaders:
    """What a request's headers said. `fault` is set if the call must be refused for them; `request_id` is good even
    then, because the refusal carries it.
    """

    request_id: str
    timeout_s: float | None = None
    credentials: Credentials = NO_CREDENTIALS
    explain: bool = False
    metadata: Metadata = ()
    priority: int | None = None
    """The class that the caller asks for; None if it names none."""
    dropped: int = 0
    """Headers that the policy forwards but gRPC metadata cannot carry."""
    fault: GatewayError | None = None


class HeaderReader:
    """Reads request headers under one policy.

    `forward` is the policy's `forward_headers`: names, prefixes ending in `*`, or `*`. `chance` makes the ids of calls
    that bring none. `identity_header` is the one in which trusted peers name the tenant, "" if there is none. Never
    raises: a fault is returned in the result.
    """

    def __init__(self, forward: tuple[str, ...], chance: random.Random, identity_header: str = "") -> None:
        self._chance = chance
        self._identity_header = identity_header
        self._all = "*" in forward
        self._names = frozenset(name.lower() for name in forward if not name.endswith("*"))
        self._prefixes = tuple(name[:-1].lower() for name in forward if name.endswith("*") and name != "*")
        self._use: dict[str | bytes, int] = {}
        self._places: dict[bytes, tuple[int, str, int]] = {}
        self.timeouts_s: dict[bytes | str, float] = {}
        """What values of the time-out stand for that were seen before. Always this very dictionary."""

    def new_request_id(self) -> str:
        """32 hex digits."""
        return f"{self._chance.getrandbits(128):032x}"

    def takes(self, name: bytes) -> bool:
        """Whether a header of this name means anything: it is read here, or goes on."""
        return self._learn(name) != 0

    def claims(self, name: bytes) -> bool:
        """Whether it is in a header of this name that trusted peers name the tenant."""
        return name.decode("latin-1") == self._identity_header

    def read(self, pairs: Pairs, peer: Peer = NO_PEER) -> ClientHeaders:
        """`pairs` in the order of arrival, names in lower case; `peer` is who sends them."""
        use = self._use
        relevant = [pair for pair in pairs if (use[pair[0]] if pair[0] in use else self._learn(pair[0]))]
        return self._read(relevant, peer)

    def read_bytes(self, pairs: Sequence[tuple[bytes, bytes]], peer: Peer = NO_PEER) -> ClientHeaders:
        """The same for pairs of bytes, taken as ISO 8859-1 (RFC 9110 section 5.5)."""
        usual = self.usual(pairs, peer)
        if usual is not None:
            return usual
        use = self._use
        relevant = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in pairs
            if (use[name] if name in use else self._learn(name))
        ]
        return self._read(relevant, peer)

    def usual(
        self, pairs: Sequence[tuple[bytes, bytes]], peer: Peer, *, for_a_call: bool = True
    ) -> ClientHeaders | None:
        """What `_finish` makes of headers with which nothing is wrong, in one pass; None as soon as anything is out of
        the ordinary. Three quarters of what reading headers costs are saved here. Not `for_a_call`: no id is made.
        """
        places = self._places
        seen = size = 0
        request_id, timeout_s, parent, state = "", None, b"", ""
        credentials = priority = None
        kept: list[tuple[str, str]] = []
        for name, value in pairs:
            found = places.get(name)
            if found is None:
                found = self._place(name)
            place, text, cost = found
            if not place:
                continue
            if seen & place:
                return None  # twice
            if place & _FORWARDED:
                plain = value.decode("latin-1")
                if not plain or not plain.isascii() or not plain.isprintable():
                    return None
                size += cost + len(plain)
                kept.append((text, plain))
                if place & _IS_REQUEST_ID:
                    request_id = plain
                elif place == _FORWARDED:
                    continue
            elif place == _IS_TIMEOUT:
                timeout_s = self.timeouts_s.get(value)
                if timeout_s is None and (timeout_s := self._timeout(value)) is None:
                    return None
            elif place == _IS_PARENT:
                parent = value
            elif place == _IS_STATE:
                state = value.decode("latin-1")
            elif place == _IS_PRIORITY:
                priority = CLASS_OF_BYTES.get(value)
                if priority is None:
                    return None
            elif place == _IS_KEY:
                credentials = Credentials(value.decode("latin-1") or None, None, None, peer)
            elif place == _IS_TOKEN:
                bearers = _bearer((value.decode("latin-1"),))
                credentials = Credentials(None, bearers[0] or None if bearers else None, None, peer)
            elif place == _IS_REQUEST_ID:
                request_id = value.decode("latin-1")
                if not request_id.isascii() or not request_id.isprintable():
                    return None
            elif place != _IS_CONNECTION or value != b"keep-alive":  # that takes away no header that goes on
                return None
            seen |= place & ~_FORWARDED
        if size > FORWARD_BYTES_MAX or len(request_id) > REQUEST_ID_CHARS_MAX or seen & _CREDENTIALS == _CREDENTIALS:
            return None
        if parent:
            if PLAIN_PARENT.fullmatch(parent) is None:
                return None
            kept.append((TRACEPARENT, parent.decode("ascii")))
            if state and size + len(state) <= FORWARD_BYTES_MAX and _valid_state(state):
                kept.append((TRACESTATE, state))
        if credentials is None:
            credentials = _shown(peer)
        if not request_id and for_a_call:
            request_id = self.new_request_id()
        return ClientHeaders(request_id, timeout_s, credentials, False, tuple(kept), priority)

    def _place(self, name: bytes) -> tuple[int, str, int]:
        """What `usual` does with a header of this name: the bits of its place, the name as text, and what the name
        costs of `FORWARD_BYTES_MAX`. Remembered, as in `_learn`.
        """
        use = self._learn(name)
        text = name.decode("latin-1")
        place = 0
        if use & _OURS:
            place = _IS_UNUSUAL if text == self._identity_header else _OWN_PLACES.get(text, _IS_UNUSUAL)
        if use & _ON:
            place |= _FORWARDED if _NAME.match(text) and not text.endswith("-bin") else _IS_UNUSUAL
        if place & _IS_UNUSUAL:
            place = _IS_UNUSUAL
        found = (place, text, len(text) + 32)
        if len(self._places) >= _USES_MAX:
            self._places.clear()
        if len(text) <= _USE_CHARS_MAX:
            self._places[name] = found
        return found

    def usual_timeout_s(self, value: str) -> float | None:
        """The seconds that the time-out `value`, in ASCII, stands for; None if there is something wrong with it."""
        timeout_s = self.timeouts_s.get(value)
        return self._timeout(value) if timeout_s is None else timeout_s

    def _timeout(self, value: bytes | str) -> float | None:
        """The same, and remembered."""
        try:
            timeout_s = _timeout_s((value if isinstance(value, str) else value.decode("latin-1"),))
        except GatewayError:
            return None
        if timeout_s is not None:
            if len(self.timeouts_s) >= _USES_MAX:
                self.timeouts_s.clear()
            self.timeouts_s[value] = timeout_s
        return timeout_s

    def _learn(self, name: str | bytes) -> int:
        """What a header of this name is for: a sum of `_OURS` and `_ON`. Remembered, because names repeat."""
        text = name if isinstance(name, str) else name.decode("latin-1")
        use = _OURS if text in _OWN or text == self._identity_header else 0
        if not never_forwarded(text) and text != self._identity_header and self._forwards(text):
            use += _ON
        if len(self._use) >= _USES_MAX:
            self._use.clear()
        if len(text) <= _USE_CHARS_MAX:
            self._use[name] = use
        return use

    def _forwards(self, name: str) -> bool:
        return self._all or name in self._names or name.startswith(self._prefixes)

    def _read(self, pairs: list[tuple[str, str]], peer: Peer) -> ClientHeaders:
        if not pairs:
            return ClientHeaders(self.new_request_id(), credentials=_shown(peer))
        own: dict[str, list[str]] = {}
        forwarded: list[tuple[str, str]] = []
        for pair in pairs:
            name = pair[0]
            use = self._use.get(name)
            if use is None:
                use = self._learn(name)
            if use & _OURS:
                own.setdefault(name, []).append(pair[1])
            if use & _ON:
                forwarded.append(pair)
        return self._finish(own, forwarded, peer)

    def _finish(self, own: dict[str, list[str]], forwarded: list[tuple[str, str]], peer: Peer) -> ClientHeaders:
        read = ClientHeaders("")
        try:
            # First: whoever has another header wrong is told of that, and not that it is unknown.
            read.credentials = self._credentials(own, peer)
            read.request_id = _request_id(own.get(REQUEST_ID, ())) or self.new_request_id()
            read.timeout_s = _timeout_s(own.get(TIMEOUT_MS, ()))
            read.explain = _explain(own.get(EXPLAIN, ()))
            read.priority = _priority(own.get(PRIORITY, ()))
            for name in NOT_YET:
                if name in own:
                    raise GatewayError(Reason.UNSUPPORTED, f"the header {name} is not available yet; leave it out")
        except GatewayError as fault:
            read.fault = fault.with_traceback(None)  # the traceback holds this frame, which holds `read`
            read.request_id = read.request_id or self.new_request_id()
            return read
        named = own.get("connection")
        hop = {token.strip().lower() for value in named for token in value.split(",")} if named else ()
        kept: list[tuple[str, str]] = []
        size = 0
        for pair in forwarded:
            name, value = pair
            if name in hop:
                continue
            if not _NAME.match(name) or name.endswith("-bin") or not _VALUE.match(value):
                read.dropped += 1
                continue
            size += len(name) + len(value) + 32
            kept.append(pair)
        if size > FORWARD_BYTES_MAX:
            read.fault = GatewayError(
                Reason.TOO_LARGE,
                f"the headers that go on to the model server come to {size} bytes; the limit is {FORWARD_BYTES_MAX}",
            )
            return read
        if TRACEPARENT in own:
            # A trace's state goes along if there is room for it: it is the sender's to lose (W3C, "limits").
            states = own.get(TRACESTATE, ())
            fits = size + sum(map(len, states)) <= FORWARD_BYTES_MAX
            kept.extend(trace_context(own[TRACEPARENT], states if fits else ()))
        read.metadata = tuple(kept)
        return read

    def _credentials(self, own: dict[str, list[str]], peer: Peer) -> Credentials:
        keys, tokens = own.get(API_KEY, ()), own.get("authorization", ())
        name = self._identity_header
        if not keys and not tokens and (not name or name not in own):
            return _shown(peer)
        bearers = _bearer(tokens)
        if len({*keys, *bearers}) > 1:
            raise GatewayError(Reason.BAD_REQUEST, f"{API_KEY} and authorization name different keys; send one of them")
        claimed = _one(name, own[name]) if name and name in own else None
        key, bearer = keys[0] if keys else "", bearers[0] if bearers else ""
        return Credentials(key or None, bearer or None, claimed, peer)


_OURS, _ON = 1, 2
_FORWARDED, _IS_REQUEST_ID, _IS_TIMEOUT, _IS_PARENT, _IS_STATE, _IS_KEY, _IS_TOKEN, _IS_CONNECTION = (
    1 << bit for bit in range(8)
)
_IS_PRIORITY, _IS_UNUSUAL = 1 << 8, 1 << 9
_CREDENTIALS = _IS_KEY | _IS_TOKEN
_OWN_PLACES = {
    REQUEST_ID: _IS_REQUEST_ID,
    TIMEOUT_MS: _IS_TIMEOUT,
    TRACEPARENT: _IS_PARENT,
    TRACESTATE: _IS_STATE,
    API_KEY: _IS_KEY,
    "authorization": _IS_TOKEN,
    "connection": _IS_CONNECTION,
    PRIORITY: _IS_PRIORITY,
}
CLASS_OF_BYTES = {name.encode(): rank for name, rank in CLASS_OF.items()}
PLAIN_PARENT_TEXT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
PLAIN_PARENT = re.compile(PLAIN_PARENT_TEXT.pattern.encode())
_USES_MAX = 1024
_USE_CHARS_MAX = 64
_OWN = frozenset(
    {
        *(REQUEST_ID, TIMEOUT_MS, API_KEY, "authorization", EXPLAIN, PRIORITY, TRACEPARENT, TRACESTATE, "connection"),
        *NOT_YET,
    }
)


def _one(name: str, values: Iterable[str]) -> str | None:
    """The value of a header that may be sent once; the same value twice is once."""
    distinct = set(values)
    if len(distinct) > 1:
        raise GatewayError(Reason.BAD_REQUEST, f"the header {name} is given more than once, with different values")
    return distinct.pop() if distinct else None


def _request_id(values: Iterable[str]) -> str | None:
    value = _one(REQUEST_ID, values)
    if value is None or value == "":
        return None
    if len(value) > REQUEST_ID_CHARS_MAX or not _VALUE.match(value):
        raise GatewayError(
            Reason.BAD_REQUEST, f"{REQUEST_ID} must be 1 to {REQUEST_ID_CHARS_MAX} printable ASCII characters"
        )
    return value


def _timeout_s(values: Iterable[str]) -> float | None:
    value = _one(TIMEOUT_MS, values)
    if value is None:
        return None
    # isascii as well: str.isdecimal is true for the digits of every script, and int() reads them.
    if not (value.isascii() and value.isdecimal() and len(value) <= 12 and 1 <= int(value) <= TIMEOUT_MS_MAX):
        raise GatewayError(
            Reason.BAD_REQUEST, f"{TIMEOUT_MS} must be a whole number of milliseconds from 1 to {TIMEOUT_MS_MAX}"
        )
    return int(value) / 1000


def _bearer(authorizations: Iterable[str]) -> list[str]:
    """The tokens. An `authorization` of another scheme than Bearer is none of ours and is left alone."""
    found = []
    for value in authorizations:
        scheme, _, token = value.partition(" ")
        if scheme.lower() == "bearer":
            found.append(token.strip())
    return found


def _shown(peer: Peer) -> Credentials:
    """What a request shows that brings no credentials of its own."""
    return NO_CREDENTIALS if peer is NO_PEER else Credentials(peer=peer)


def _explain(values: Iterable[str]) -> bool:
    value = _one(EXPLAIN, values)
    if value in (None, "", "0"):
        return False
    if value == "1":
        return True
    raise GatewayError(Reason.BAD_REQUEST, f"{EXPLAIN} must be 1 or 0")


def _priority(values: Iterable[str]) -> int | None:
    value = _one(PRIORITY, values)
    if value is None:
        return None
    rank = CLASS_OF.get(value)
    if rank is None:
        raise GatewayError(Reason.BAD_REQUEST, f"{PRIORITY} must be {WORDS}")
    return rank


def trace_context(parents: Iterable[str], states: Iterable[str]) -> Metadata:
    """The W3C trace context to pass on, byte for byte, or nothing if it is invalid: a bad `traceparent` takes its
    `tracestate` with it, a bad `tracestate` goes alone. Never an error (https://www.w3.org/TR/trace-context/).
    """
    parent = tuple(parents)
    if len(parent) != 1:
        return ()
    match = _TRACEPARENT.match(parent[0])
    if match is None:
        return ()
    version, trace, span, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or not trace.strip("0") or not span.strip("0"):
        return ()
    if not _VALUE.match(parent[0]) or len(parent[0]) > 256:
        return ()
    state = ",".join(states)
    if not state or not _valid_state(state):
        return ((TRACEPARENT, parent[0]),)
    return ((TRACEPARENT, parent[0]), (TRACESTATE, state))


def _valid_state(state: str) -> bool:
    if len(state) > _STATE_CHARS_MAX:
        return False
    members = [member.strip(" \t") for member in state.split(",")]
    present = [member for member in members if member]
    return (
        0 < len(present) <= _STATE_MEMBERS_MAX
        and "\t" not in state
        and all(_STATE_MEMBER.match(member) for member in present)
    )


_UNRESERVED = "!\"#$&'()*+,-./:;<=>?@[]^_`{|}~"


def header_text(value: str) -> str:
    """`value` as a header may carry it: what is not visible ASCII, and `%` itself, percent-encoded as UTF-8. Undone by
    decoding once.
    """
    if value.isascii() and value.isprintable() and " " not in value and "%" not in value:
        return value
    return urllib.parse.quote(value, safe=_UNRESERVED, errors="replace")


def response_headers(call: Call, error: GatewayError | None = None, explanation: str = "") -> list[tuple[str, str]]:
    """What the response to `call` says about itself, whether it is an answer or `error`. Of what is not known, because
    the call never got that far, nothing is said.
    """
    trail = call.trail
    pairs = [(REQUEST_ID, call.request_id)]
    if call.model and len(call.model) <= MODEL_CHARS_MAX:
        pairs.append(("x-sluice-model", header_text(call.model)))
    version = trail.version_served or trail.version_routed
    if version:
        pairs.append(("x-sluice-model-version", header_text(version)))
    if error is None:
        if trail.rung:
            pairs.append(("x-sluice-rung", trail.rung))
    else:
        pairs.append(("x-sluice-reason", error.reason.label))
    pairs.append(("x-sluice-cache", "bypass"))
    pairs.append(("x-sluice-attempts", str(len(trail.attempts))))
    if explanation:
        pairs.append((EXPLAIN, explanation))
    return pairs
