"""The repository index: Triton's messages in protobuf and JSON, and how those of several servers become one's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from gateway.core.errors import GatewayError, Reason
from gateway.core.faces import IndexEntry
from gateway.core.faults import public_text
from gateway.wire.kserve import protobuf as pb
from gateway.wire.kserve.request_view import unparseable
from gateway.wire.kserve.response_view import broken

STATES = ("READY", "LOADING", "UNLOADING", "UNAVAILABLE", "UNKNOWN")
"""Triton's states, the best first: of a version that several servers have, the best one's is shown."""

NAMED_REPOSITORY = (
    "'repository_name' specification is not supported: all model servers have one repository each; ask without a name"
)

REASONS_MAX = 4
"""Different states and reasons of one version that its line tells of."""

MERGE_RULES: tuple[tuple[str, str], ...] = (
    (
        "`name`, `version`",
        "One line for each version that any replica of the model's pool has in its index. A model that is in their "
        "repositories and that nobody has loaded has one line with its `name` alone, as on Triton.",
    ),
    (
        "`state`",
        "The best of the replicas' states: "
        + ", ".join(f"`{state}`" for state in STATES)
        + ". A replica's `READY` counts only where the gateway sends calls: a version that is still being warmed there "
        "is `LOADING`, one that the gateway has taken out of service `UNAVAILABLE`.",
    ),
    (
        "`reason`",
        "Triton's, where all replicas say the same (without addresses and paths). Else how many of them are in which "
        f"state and why, the {REASONS_MAX} best first; how many do not have the version, and how many did not answer.",
    ),
)
"""Field, and how it is made from those of the replicas: for the manual."""


def decode_index(message: bytes) -> tuple[IndexEntry, ...]:
    """A replica's `RepositoryIndexResponse`. Raises `GatewayError` (UPSTREAM_BROKEN)."""
    entries: list[IndexEntry] = []
    try:
        for number, wire, start, stop in pb.fields(message, 0, len(message)):
            if number != 1:
                continue
            pb.expect(wire, pb.LEN, 1, stop)
            names = {1: "", 2: "", 3: "", 4: ""}
            for inner, inner_wire, a, b in pb.fields(message, start, stop):
                if inner in names:
                    pb.expect(inner_wire, pb.LEN, inner, b)
                    names[inner] = pb.text(message, a, b)
            entries.append(IndexEntry(names[1], names[2], names[3], names[4]))
    except pb.WireError as error:
        raise broken(str(error)) from None
    return tuple(entries)


def decode_index_request(message: bytes) -> bool:
    """A caller's `RepositoryIndexRequest`: whether only what is ready is wanted. Raises `GatewayError` (BAD_REQUEST;
    UNSUPPORTED if it names a repository).
    """
    ready = False
    named = b""
    try:
        for number, wire, a, b in pb.fields(message, 0, len(message)):
            if number == 1:
                pb.expect(wire, pb.LEN, 1, b)
                named = message[a:b]
            elif number == 2:
                pb.expect(wire, pb.VARINT, 2, b)
                ready = a != 0
    except pb.WireError as error:
        raise unparseable("RepositoryIndexRequest", error) from None
    if named:
        raise GatewayError(Reason.UNSUPPORTED, NAMED_REPOSITORY)
    return ready


def decode_index_body(body: bytes) -> bool:
    """The same from HTTP's JSON. As on Triton an empty body, or JSON that is no object, asks for everything. Raises
    `GatewayError` (BAD_REQUEST).
    """
    if not body:
        return False
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise GatewayError(Reason.BAD_REQUEST, f"the body is not JSON: {error}") from None
    ready = document.get("ready", False) if isinstance(document, dict) else False
    if not isinstance(ready, bool):
        raise GatewayError(Reason.BAD_REQUEST, "'ready' is not true or false")
    return ready


def index_to_protobuf(entries: Iterable[IndexEntry]) -> bytes:
    """A serialized `RepositoryIndexResponse`."""
    return b"".join(
        pb.len_field(
            1,
            b"".join(
                pb.text_field(number, value)
                for number, value in enumerate((entry.name, entry.version, entry.state, entry.reason), 1)
                if value
            ),
        )
        for entry in entries
    )


def index_to_json(message: bytes) -> bytes:
    """A `RepositoryIndexResponse` in Triton's HTTP form: what is not known is left out. Raises `GatewayError`
    (UPSTREAM_BROKEN).
    """
    rows = []
    for entry in decode_index(message):
        more = (("version", entry.version), ("state", entry.state), ("reason", entry.reason))
        rows.append({"name": entry.name, **{key: value for key, value in more if value}})
    return orjson.dumps(rows)


def merge_index(name: str, answers: Sequence[Iterable[IndexEntry]], silent: int = 0) -> list[IndexEntry]:
    """The lines of one model. `answers` are the entries of that model from each replica that answered; `silent` is how
    many did not. Versions ascend; a model that nobody has loaded has one line without a version, as on Triton.
    """
    by_version: dict[str, list[IndexEntry]] = {}
    there = False
    for entries in answers:
        for entry in entries:
            there = True
            if entry.version:
                by_version.setdefault(entry.version, []).append(entry)
    if not by_version:
        return [IndexEntry(name, "", "", "")] if there else []
    return [
        _line(name, version, by_version[version], len(answers), silent)
        for version in sorted(by_version, key=version_order)
    ]


def _line(name: str, version: str, entries: list[IndexEntry], answered: int, silent: int) -> IndexEntry:
    groups: dict[tuple[str, str], int] = {}
    for entry in entries:
        key = (entry.state, public_text(entry.reason))
        groups[key] = groups.get(key, 0) + 1
    ranked = sorted(groups, key=lambda key: (_rank(key[0]), -groups[key], key))
    state, reason = ranked[0]
    missing = answered - len(entries)
    if len(groups) > 1 or missing or silent:
        told = []
        for each in ranked[:REASONS_MAX]:
            why = f": {each[1]}" if each[1] else ""
            told.append(f"{each[0] or 'no state'} on {groups[each]}{why}")
        if len(ranked) > REASONS_MAX:
            told.append(f"{len(ranked) - REASONS_MAX} more kinds")
        if missing:
            told.append(f"not there on {missing}")
        if silent:
            told.append(f"no answer from {silent}")
        reason = f"of {answered + silent} replicas: " + "; ".join(told)
    return IndexEntry(name, version, state, reason)


def _rank(state: str) -> int:
    return STATES.index(state) if state in STATES else len(STATES)


def version_order(version: str) -> tuple[int, str]:
    """Sorts versions by their number; what is no number comes first."""
    return (int(version), version) if version.isascii() and version.isdecimal() and len(version) < 20 else (-1, version)
