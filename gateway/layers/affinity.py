"""Where the key of a call is that keeps it together with others, as the policy says.

A key is a caller's word, of any length, and may be a secret: it is hashed for the choice of a replica, and is neither
kept, logged nor recorded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from gateway.core.call import Call
from gateway.decide.affinity import Affinity
from gateway.decide.rendezvous import Key
from gateway.policy.schema import Affinity as AffinityPolicy
from gateway.wire.kserve.request_view import read_head

KeyOf = Callable[[Call], Key | None]
"""The key of a call; None if it has none, and goes where there is least to do."""

SHORT_CHARS = 64
"""A longer key is hashed once, and not again for each replica."""

KEY_CHARS_MAX = 4096
"""Of a longer one only the beginning counts: a caller's megabytes are not to be hashed on the loop that serves all."""


def key_of(policy: AffinityPolicy) -> KeyOf:
    """How the key of a call is found."""
    name = policy.name
    if policy.by == "sequence":
        return lambda call: None if call.sequence is None else _key(call.sequence.id)
    if policy.by == "parameter":
        return lambda call: _parameter(call, name)
    return lambda call: _header(call, name)


def _header(call: Call, name: str) -> Key | None:
    for each, value in call.metadata:
        if each == name:
            return _key(value)
    return None


def _parameter(call: Call, name: str) -> Key | None:
    if call.message is None:
        return None
    parameter = read_head(call.message).parameters.get(name)
    return None if parameter is None else _key(parameter.value)


def _key(value: str | int | float | None) -> Key | None:
    """The same over both protocols: JSON's numbers become the types that protobuf's parameters have."""
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        return value if isinstance(value, int) else repr(value)
    if len(value) <= SHORT_CHARS:
        return value
    return hashlib.blake2b(value[:KEY_CHARS_MAX].encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def tell_affinity(call: Call, affinity: Affinity | None) -> None:
    """Note where the key of a call that was just granted a slot has led it."""
    assert affinity is not None, "keys are read only where they mean something"
    word = affinity.why
    if word == "home" and not call.explain:
        return
    if word == "lent":
        call.trail.note("affinity", word, {})
        return
    saw: dict[str, float | str] = {"place": affinity.place, "home_in_flight": affinity.in_flight}
    if affinity.home:
        saw |= {"replica": affinity.home, "home_bound": affinity.bound}
    call.trail.note("affinity", "elsewhere" if word == "full" else word, saw)
