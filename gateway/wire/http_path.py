"""Raw HTTP target -> route of the v2 protocol, with model and version.

The path is cut off its query, split on literal slashes, and each segment is percent-decoded exactly once, so `%2F`
belongs to a name and `%252F` is another name (the same identity that gRPC's `model_name` carries). Fixed words of a
route match only as they are written, as in Triton. A dot segment in any spelling, a control character, an escape that
is none, or invalid UTF-8 makes a BAD_PATH even where no route would match: nothing climbs. Trailing and double
slashes match no route.

A version is a decimal number without leading zeros within a signed 64-bit integer, as Triton's directories have.
Anything else is BAD_VERSION with route, model and the text given, so that a configured alias can still be looked up;
it never falls back to another version.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

_GET = frozenset({b"GET"})
_POST = frozenset({b"POST"})
_GET_POST = frozenset({b"GET", b"POST"})


class Route(enum.Enum):
    """Every endpoint of Triton's HTTP surface.

    `template` is the path with its parameters by name, one of a closed set and so fit for a metrics label; a part in
    brackets is optional. `methods` are those that Triton takes (HEAD is none of them), `allow` the same as the value
    of a 405's `allow` header.
    """

    template: str
    methods: frozenset[bytes]
    allow: bytes

    def __new__(cls, template: str, methods: frozenset[bytes]) -> Route:
        member = object.__new__(cls)
        member._value_ = template
        member.template = template
        member.methods = methods
        member.allow = b", ".join(sorted(methods))
        return member

    SERVER_METADATA = "/v2", _GET
    HEALTH_LIVE = "/v2/health/live", _GET
    HEALTH_READY = "/v2/health/ready", _GET
    MODEL_METADATA = "/v2/models/{model}[/versions/{version}]", _GET
    MODEL_READY = "/v2/models/{model}[/versions/{version}]/ready", _GET
    MODEL_CONFIG = "/v2/models/{model}[/versions/{version}]/config", _GET
    MODEL_INFER = "/v2/models/{model}[/versions/{version}]/infer", _POST
    MODEL_GENERATE = "/v2/models/{model}[/versions/{version}]/generate", _POST
    MODEL_GENERATE_STREAM = "/v2/models/{model}[/versions/{version}]/generate_stream", _POST
    MODEL_STATS = "/v2/models/{model}[/versions/{version}]/stats", _GET
    ALL_STATS = "/v2/models/stats", _GET
    MODEL_TRACE_SETTING = "/v2/models/{model}/trace/setting", _GET_POST
    TRACE_SETTING = "/v2/trace/setting", _GET_POST
    LOGGING = "/v2/logging", _GET_POST
    REPOSITORY_INDEX = "/v2/repository[/{repository}]/index", _POST
    REPOSITORY_LOAD = "/v2/repository[/{repository}]/models/{model}/load", _POST
    REPOSITORY_UNLOAD = "/v2/repository[/{repository}]/models/{model}/unload", _POST
    SYSTEM_SHARED_MEMORY_STATUS = "/v2/systemsharedmemory[/region/{region}]/status", _GET
    SYSTEM_SHARED_MEMORY_REGISTER = "/v2/systemsharedmemory/region/{region}/register", _POST
    SYSTEM_SHARED_MEMORY_UNREGISTER = "/v2/systemsharedmemory[/region/{region}]/unregister", _POST
    CUDA_SHARED_MEMORY_STATUS = "/v2/cudasharedmemory[/region/{region}]/status", _GET
    CUDA_SHARED_MEMORY_REGISTER = "/v2/cudasharedmemory/region/{region}/register", _POST
    CUDA_SHARED_MEMORY_UNREGISTER = "/v2/cudasharedmemory[/region/{region}]/unregister", _POST


class PathResult(enum.Enum):
    """How the match of a path ended."""

    MATCHED = "matched"
    NOT_FOUND = "not_found"  # 404
    BAD_PATH = "bad_path"  # 400
    BAD_VERSION = "bad_version"  # 400 or 404, unless the text is a configured alias


@dataclass(frozen=True, slots=True)
class PathMatch:
    """A matched path. `route` is None for NOT_FOUND and BAD_PATH; names are decoded; absent ones are empty.

    `reason` says what is wrong, for the client; it holds none of the path's bytes except a bad version, shortened.
    """

    result: PathResult
    route: Route | None = None
    model: str = ""
    version: str = ""
    repository: str = ""
    region: str = ""
    reason: str = ""


_NOT_FOUND = PathMatch(PathResult.NOT_FOUND, reason="Not Found")
_VERSION = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_VERSION_MAX = 2**63 - 1
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_REASON_TEXT_MAX = 64
_MEMO_PATH_MAX_BYTES = 256


def is_version(text: str) -> bool:
    """Whether `text` can be the number of a model version (`0` can, though no version has it)."""
    return _VERSION.fullmatch(text) is not None and int(text) <= _VERSION_MAX


class _Node:
    """One place in the tree of templates: fixed words first, then at most one parameter."""

    __slots__ = ("child", "parameter", "route", "words")

    def __init__(self) -> None:
        self.words: dict[bytes, _Node] = {}
        self.parameter = ""
        self.child: _Node | None = None
        self.route: Route | None = None

    def add(self, segments: list[str], route: Route) -> None:
        if not segments:
            if self.route is not None:
                raise ValueError(f"{route} and {self.route} have the same path")
            self.route = route
            return
        first = segments[0]
        if first.startswith("{"):
            if self.child is None:
                self.child, self.parameter = _Node(), first[1:-1]
            if self.parameter != first[1:-1]:
                raise ValueError(f"{route} names a parameter differently from its neighbours")
            self.child.add(segments[1:], route)
        else:
            self.words.setdefault(first.encode("ascii"), _Node()).add(segments[1:], route)

    def find(self, segments: list[bytes], at: int) -> tuple[Route, dict[str, int]] | None:
        """The route of `segments[at:]` and the index of each parameter's segment. Fixed words win over parameters."""
        if at == len(segments):
            return None if self.route is None else (self.route, {})
        word = self.words.get(segments[at])
        found = word.find(segments, at + 1) if word is not None else None
        if found is None and self.child is not None and (segments[at] or self.parameter == "version"):
            found = self.child.find(segments, at + 1)
            if found is not None:
                found[1][self.parameter] = at
        return found


def _tree() -> _Node:
    root = _Node()
    for route in Route:
        before, bracket, rest = route.template.partition("[")
        optional, _, after = rest.partition("]")
        for path in {before + after, before + optional + after} if bracket else {before}:
            root.add(path.split("/")[1:], route)
    return root


_TREE = _tree()
_DEPTH_MAX = max(route.template.count("/") for route in Route)


class PathMatcher:
    """Matches targets and remembers the paths in use.

    Two generations of at most `memo_max` matches each: a hit in the older one moves to the younger; when that is full
    it becomes the older one. So paths in use stay whatever else is asked for, memory is bounded by 2 * memo_max paths
    of at most 256 bytes, nothing is ever searched for a victim, and a hostile path costs its own match and no more.
    Only MATCHED is kept.
    """

    __slots__ = ("_memo_max", "_older", "_younger")

    def __init__(self, memo_max: int = 512) -> None:
        if memo_max < 1:
            raise ValueError(f"memo_max is {memo_max}; it must be at least 1")
        self._memo_max = memo_max
        self._younger: dict[bytes, PathMatch] = {}
        self._older: dict[bytes, PathMatch] = {}

    def match(self, target: bytes) -> PathMatch:
        """The match of a raw target in origin-form (or `*`). Never raises; the method is the caller's to compare."""
        query = target.find(b"?")
        path = target if query < 0 else target[:query]
        found = self._younger.get(path)
        if found is not None:
            return found
        found = self._older.get(path)
        if found is None:
            found = match_path(path)
            if found.result is not PathResult.MATCHED or len(path) > _MEMO_PATH_MAX_BYTES:
                return found
        if len(self._younger) >= self._memo_max:
            self._older = self._younger
            self._younger = {}
        self._younger[path] = found
        return found

    def __len__(self) -> int:
        return len(self._younger) + len(self._older)


def match_path(path: bytes) -> PathMatch:
    """The match of a raw path without its query."""
    if not path.startswith(b"/") or path.count(b"/") > _DEPTH_MAX:
        return _NOT_FOUND  # `*`; or not worth decoding
    if not path.isascii():
        return _bad("the path holds raw bytes that are not ASCII; percent-encode them")
    segments = path.split(b"/")
    decoded = []
    for segment in segments:
        text = _decode(segment)
        if isinstance(text, PathMatch):
            return text
        decoded.append(text)
    found = _TREE.find(segments, 1)
    if found is None:
        return _NOT_FOUND
    route, places = found
    names = {name: decoded[at] for name, at in places.items()}
    version = names.get("version")
    result, reason = PathResult.MATCHED, ""
    if version is not None and not is_version(version):
        result = PathResult.BAD_VERSION
        shown = version if len(version) <= _REASON_TEXT_MAX else version[:_REASON_TEXT_MAX] + "..."
        reason = f"'{shown}' is not a model version: a version is a number without leading zeros"
    return PathMatch(result, route, reason=reason, **names)


def _decode(segment: bytes) -> str | PathMatch:
    if b"%" in segment:
        if _BAD_ESCAPE.search(segment) is not None:
            return _bad("a percent sign in the path is not followed by two hexadecimal digits")
        segment = unquote_to_bytes(segment)
    try:
        text = segment.decode("utf-8")
    except UnicodeDecodeError:
        return _bad("a path segment is not UTF-8")
    if _CONTROL.search(text) is not None:
        return _bad("a path segment holds a control character")
    if "." in text and any(part in (".", "..") for part in text.split("/")):
        return _bad("the path holds a dot segment")
    return text


def _bad(reason: str) -> PathMatch:
    return PathMatch(PathResult.BAD_PATH, reason=reason)
