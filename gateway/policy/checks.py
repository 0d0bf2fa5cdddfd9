"""What must hold between the keys of a policy: the schema judges each value alone, this file judges them together.

Every check reads through `Document.get`, which is None for a value that was refused already, and then says nothing:
one mistake must not be reported twice in two disguises.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

from gateway.core.header_names import NEVER_PREFIXES, TRACE_CONTEXT, never_forwarded
from gateway.policy import addresses
from gateway.policy.balance_checks import check_balance
from gateway.policy.decode import Document
from gateway.policy.identity_checks import check_identity, check_upstream_tls
from gateway.policy.problems import Path, Problems, path_text, printable
from gateway.policy.schema import FleetPolicy, ModelPolicy, default_deadline_ms
from gateway.policy.size_checks import check_sizes
from gateway.policy.stage_schema import Stages

Fleet = Document[FleetPolicy]
Model = Document[ModelPolicy]

_HEADER = re.compile(r"[a-z0-9!#$%&'+.^_`|~-]+\*?")
_PORTS = ("grpc", "http", "metrics")


def check_fleet(fleet: Fleet, problems: Problems) -> None:
    for check in (_sources, _static_replicas, _own_ports, _health, _headers, _messages):
        check(fleet, problems)
    check_identity(fleet, problems)
    check_upstream_tls(fleet, problems)


def check_model(model: Model, fleet: Fleet, problems: Problems) -> None:
    for check in (_pool, _body_sizes, check_balance):
        check(model, fleet, problems)
    for own in (_json_size, _versions, _split, _times, _classes, _stages, _slots):
        own(model, problems)
    check_sizes(model, fleet, problems)


def check_names(models: Sequence[Model], problems: Problems) -> None:
    """Two files must not describe one model."""
    first: dict[str, Model] = {}
    for model in models:
        name = model.get("model")
        if name is None:
            continue
        if name in first:
            other = first[name]
            message = f"`{printable(name)}` has a policy already, in {other.file} line {other.where('model').line}"
            _add(problems, model, ("model",), message, "keep one of the two files")
        first.setdefault(name, model)


def _add(
    problems: Problems, document: Document[Any], path: Path, message: str, remedy: str, allowed: Iterable[str] = ()
) -> None:
    problems.add(document.file, document.where(*path), path, message, remedy, allowed)


def _blame(document: Document[Any], *paths: Path) -> Path:
    """Of several keys that contradict each other the one that the file names (a default cannot be put right)."""
    return next((path for path in paths if document.given(*path)), paths[0])


# --- fleet.yaml -----------------------------------------------------------------------------------------------------


def _pools(fleet: Fleet) -> Mapping[str, Any]:
    pools = fleet.get("pools")
    return {name: pool for name, pool in pools.items() if isinstance(pool, dict)} if isinstance(pools, dict) else {}


def _sources(fleet: Fleet, problems: Problems) -> None:
    kinds = ("static", "dns", "file")
    for name in _pools(fleet):
        path: Path = ("pools", name, "replicas")
        if fleet.get(*path) is None:
            continue
        given = [kind for kind in kinds if fleet.given(*path, kind)]
        if len(given) > 1:
            message = f"{' and '.join(f'`{kind}`' for kind in given)} stand together"
            _add(problems, fleet, (*path, given[1]), message, "keep exactly one of them", kinds)
        elif not given:
            _add(problems, fleet, path, "says nothing of where the replicas are", "give exactly one of them", kinds)


def _static_replicas(fleet: Fleet, problems: Problems) -> None:
    seen: dict[tuple[str, int], Path] = {}
    for name in _pools(fleet):
        path: Path = ("pools", name, "replicas", "static")
        replicas = fleet.get(*path)
        if not isinstance(replicas, list):
            continue
        bound = fleet.get("pools", name, "replicas_max")
        if not replicas:
            _add(problems, fleet, path, "the list is empty", "give at least one replica, or remove the pool")
        elif bound is not None and len(replicas) > bound:
            message = f"{len(replicas)} replicas are more than `replicas_max` ({bound})"
            _add(problems, fleet, path, message, f"write `replicas_max: {len(replicas)}` or more")
        for i in range(len(replicas)):
            for port in _PORTS:
                here = (*path, i, port)
                text = fleet.get(*here)
                if not text:
                    continue
                address = addresses.normal(text)
                earlier = seen.setdefault(address, here)
                if earlier is not here:
                    message = f"`{text}` stands already in line {fleet.where(*earlier).line}, {path_text(earlier)}"
                    _add(problems, fleet, here, message, "each port of each replica has an address of its own")


def _own_ports(fleet: Fleet, problems: Problems) -> None:
    listen = {name: fleet.get("gateway", "listen", name) for name in ("http", "grpc", "metrics", "admin")}
    known = {name: text for name, text in listen.items() if text}
    for (one, text), (other, other_text) in combinations(known.items(), 2):
        if addresses.listeners_clash(text, other_text):
            here: Path = ("gateway", "listen", other)
            there: Path = ("gateway", "listen", one)
            blamed = _blame(fleet, here, there)
            message = f"`{one}` ({text}) and `{other}` ({other_text}) want the same port"
            _add(problems, fleet, blamed, message, "give each listener a port of its own")
    for name in _pools(fleet):
        replicas = fleet.get("pools", name, "replicas", "static")
        for i in range(len(replicas) if isinstance(replicas, list) else 0):
            for port in _PORTS:
                path: Path = ("pools", name, "replicas", "static", i, port)
                target = fleet.get(*path)
                mine = next((own for own, text in known.items() if target and addresses.clash(text, target)), "")
                if mine:
                    message = f"`{target}` is the gateway's own `listen.{mine}` ({known[mine]}): it would call itself"
                    _add(problems, fleet, path, message, "move the replica or the listener to another port")


def _health(fleet: Fleet, problems: Problems) -> None:
    for name in _pools(fleet):
        interval = fleet.get("pools", name, "health", "interval_ms")
        recheck = fleet.get("pools", name, "health", "recheck_ms")
        if interval is not None and recheck is not None and recheck > interval:
            path = _blame(fleet, ("pools", name, "health", "recheck_ms"), ("pools", name, "health", "interval_ms"))
            message = f"`recheck_ms` ({recheck}) is longer than `interval_ms` ({interval})"
            _add(problems, fleet, path, message, "after a failure the next probe comes sooner, not later")


def _headers(fleet: Fleet, problems: Problems) -> None:
    patterns = fleet.get("gateway", "forward_headers")
    seen: set[str] = set()
    for i, pattern in enumerate(patterns or ()):
        path: Path = ("gateway", "forward_headers", i)
        if pattern is None or not fleet.given(*path):
            continue
        shown = f"`{printable(pattern)}`"
        if pattern != pattern.lower():
            _add(problems, fleet, path, f"{shown} has capitals", f"write `{printable(pattern.lower())}`")
        elif pattern != "*" and not _HEADER.fullmatch(pattern):
            remedy = "write a header's name, a prefix and `*` as in `x-team-*`, or `*` alone"
            _add(problems, fleet, path, f"{shown} is not a header's name or prefix", remedy)
        elif pattern.startswith(NEVER_PREFIXES) or (never_forwarded(pattern) and pattern not in TRACE_CONTEXT):
            message = f"{shown} belongs to one connection or is a credential, and is never forwarded"
            _add(problems, fleet, path, message, "remove it")
        elif pattern in seen:
            _add(problems, fleet, path, f"{shown} stands twice", "keep one of the two")
        seen.add(pattern)


def _messages(fleet: Fleet, problems: Problems) -> None:
    """What a replica may send must fit through the client's side of the gateway too."""
    ours = fleet.get("gateway", "grpc", "message_bytes_max")
    for name in _pools(fleet):
        theirs = fleet.get("pools", name, "message_bytes_max")
        if ours is not None and theirs is not None and theirs > ours:
            own: Path = ("gateway", "grpc", "message_bytes_max")
            path = _blame(fleet, ("pools", name, "message_bytes_max"), own)
            message = f"pool `{name}` may send {theirs} bytes, but gRPC callers may get only {ours}"
            _add(problems, fleet, path, message, f"make `{path_text(own)}` at least the pool's `message_bytes_max`")


# --- models/*.yaml --------------------------------------------------------------------------------------------------


def _pool(model: Model, fleet: Fleet, problems: Problems) -> None:
    name, pools = model.get("pool"), fleet.get("pools")
    if name is not None and isinstance(pools, dict) and name not in pools:
        remedy = "name a pool of fleet.yaml, or add this one there"
        _add(problems, model, ("pool",), f"there is no pool `{name}` in fleet.yaml", remedy, sorted(pools)[:20])


def _body_sizes(model: Model, fleet: Fleet, problems: Problems) -> None:
    """A body must fit every leg of its way, or callers learn of the narrowest one only by failing."""
    size = model.get("limits", "body_bytes_max")
    pool = model.get("pool")
    if size is None:
        return
    legs: list[Path] = [("gateway", "body_memory_bytes"), ("gateway", "grpc", "message_bytes_max")]
    if pool is not None:
        legs.insert(0, ("pools", pool, "message_bytes_max"))
    for leg in legs:
        bound = fleet.get(*leg)
        if bound is not None and size > bound:
            origin = "" if model.given("limits", "body_bytes_max") else ", the default,"
            message = f"{size} bytes{origin} are more than `{path_text(leg)}` in fleet.yaml lets through ({bound})"
            _add(problems, model, ("limits", "body_bytes_max"), message, f"write at most {bound}, or raise that limit")
            return


def _json_size(model: Model, problems: Problems) -> None:
    """JSON is part of the body: what is allowed beyond the body is never reached. A default may be larger."""
    body, json = model.get("limits", "body_bytes_max"), model.get("limits", "json_bytes_max")
    if body is not None and json is not None and json > body and model.given("limits", "json_bytes_max"):
        message = f"`json_bytes_max` ({json}) is more than `body_bytes_max` ({body}), of which JSON is a part"
        _add(problems, model, ("limits", "json_bytes_max"), message, "lower it, or raise `body_bytes_max`")


def _slots(model: Model, problems: Problems) -> None:
    """The limit starts at the slots, between its floor and its cap."""
    names = ("floor_per_replica", "cap_per_replica")
    floor, cap = (model.get("admission", "limit", name) for name in names)
    slots = model.get("admission", "slots_per_replica")
    paths: tuple[Path, ...] = (("admission", "limit", names[0]), ("admission", "slots_per_replica"))
    paths += (("admission", "limit", names[1]),)
    rising = [(value, path) for value, path in zip((floor, slots, cap), paths, strict=True) if value is not None]
    for (less, lower), (more, upper) in pairwise(rising):
        if less > more:
            message = f"`{path_text(lower)}` ({less}) is more than `{path_text(upper)}` ({more})"
            _add(problems, model, lower, message, "the floor is at most the slots, and these at most the cap")
            return
    if model.get("admission", "limit", "adaptive") is False and (floor is not None or cap is not None):
        path = paths[0] if floor is not None else paths[2]
        message = f"`{path_text(path)}` bounds a limit that `adaptive: false` holds still"
        _add(problems, model, path, message, "remove it, or write `adaptive: true`; `slots_per_replica` sets the slots")


def _versions(model: Model, problems: Problems) -> None:
    versions = model.get("versions")
    if versions is None:
        return
    if not versions:
        _add(problems, model, ("versions",), "the list is empty", "name versions, or remove the key to allow all")
    for i, version in enumerate(versions):
        if version is not None and version in versions[:i]:
            _add(problems, model, ("versions", i), f'"{version}" stands twice', "keep one of the two")


def _split(model: Model, problems: Problems) -> None:
    split, versions = model.get("split"), model.get("versions")
    if split is None:
        return
    if not split:
        remedy = "give weights, or remove the key to get the newest version"
        _add(problems, model, ("split",), "no version has a weight", remedy)
        return
    weights = list(split.values())
    if None not in weights and not any(weights):
        message = "all weights are 0, so no version would get a call"
        _add(problems, model, ("split",), message, "give at least one version a weight above 0")
    if not versions or None in versions:
        return
    for version in split:
        if version not in versions and split[version] is not None:
            where = model.where("split", version, of_key=True)
            message = f'version "{version}" is not among `versions`'
            path: Path = ("split", version)
            problems.add(model.file, where, path, message, "add it there, or remove it here", versions[:20])


def _times(model: Model, problems: Problems) -> None:
    default, longest = model.get("deadline", "default_ms"), model.get("deadline", "max_ms")
    objective = model.get("objective", "p99_ms")
    if default is not None and longest is not None and default > longest:
        path = _blame(model, ("deadline", "default_ms"), ("deadline", "max_ms"))
        message = f"`default_ms` ({default}) is longer than `max_ms` ({longest})"
        _add(problems, model, path, message, "raise `max_ms`, or lower `default_ms`")
        return
    bounds = (("default_ms", default), ("max_ms", longest))
    for name, bound in bounds:
        if objective is not None and bound is not None and objective > bound:
            message = (
                f"the promise ({objective:g} ms) is longer than `deadline.{name}` ({bound}): calls would end first"
            )
            _add(problems, model, ("objective", "p99_ms"), message, f"raise `deadline.{name}`, or promise less time")
            return


def _classes(model: Model, problems: Problems) -> None:
    named = model.get("classes", "default") is not None
    if model.get("latency_critical") is True and model.get("interactive") is False and not named:
        path = _blame(model, ("interactive",), ("latency_critical",))
        message = "`latency_critical: true` and `interactive: false` ask for different classes"
        _add(problems, model, path, message, "remove one of them, or name the class in `classes.default`")


def _stages(model: Model, problems: Problems) -> None:
    """The split must fit what it splits, or it would be another for every call than the one that the file shows."""
    stages = model.get("deadline", "stages")
    longest, promised = model.get("deadline", "max_ms"), model.get("objective", "p99_ms")
    default = model.get("deadline", "default_ms")
    if stages is None or longest is None:
        return
    parts = [stages.get(name) for name in Stages.__struct_fields__]
    if any(value is None and model.given("deadline", "stages", name) for name, value in stages.items()):
        return
    bounds = [("max_ms", longest)]
    if default is not None:
        bounds.insert(0, ("default_ms", default))
    elif not model.given("deadline", "default_ms") and promised is not None:
        bounds.insert(0, ("default_ms", default_deadline_ms(longest, promised)))
    total = sum(value for value in parts if value is not None)
    for name, bound in bounds:
        if total > bound:
            origin = "" if model.given("deadline", name) else ", the default,"
            message = f"the stages come to {total:g} ms, more than `deadline.{name}` ({bound:g}{origin} ms)"
            path: Path = ("deadline", "stages")
            _add(problems, model, path, message, f"shorten some, or write `{name}: {math.ceil(total)}` or more")
            return
