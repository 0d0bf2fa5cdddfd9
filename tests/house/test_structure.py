"""The structure is a test: which room may import which, what is banned where, and how long a file may get."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GATEWAY = ROOT / "gateway"

ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "runtime": set(),
    "wire": {"core"},
    "decide": {"core"},
    "policy": {"core"},
    "observe": {"core"},
    "records": {"core", "runtime", "observe", "policy", "wire"},
    "stores": {"core", "runtime", "decide"},
    "layers": {"core", "runtime", "decide", "policy", "records", "observe", "wire"},
    "fleet": {"core", "runtime", "wire", "decide", "policy", "observe"},
    "edge": {"core", "runtime", "wire", "observe", "policy"},
    "admin": {"core", "runtime", "observe", "records"},
    "tuned": {"decide", "policy"},
    "stack": {"core", "runtime", "decide", "policy", "observe", "layers", "tuned"},
}
"""Room to the rooms it may import; a room may always import itself. `app` and `cli` may import everything."""

COMPOSITION_ROOTS = {"app", "assembly", "cli", "__main__", "__init__"}

BANNED_CALLS = {
    "time.time": "gateway.runtime.clock",
    "time.monotonic": "gateway.runtime.clock",
    "time.perf_counter": "gateway.runtime.clock",
    "time.sleep": "asyncio.sleep",
    "datetime.now": "gateway.runtime.clock",
    "datetime.utcnow": "gateway.runtime.clock",
    "uuid.uuid4": "gateway.runtime.chance",
    "os.urandom": "gateway.runtime.chance",
    "asyncio.get_event_loop": "asyncio.get_running_loop",
    "random.random": "gateway.runtime.chance",
    "random.choice": "gateway.runtime.chance",
    "random.randint": "gateway.runtime.chance",
    "random.uniform": "gateway.runtime.chance",
    "random.shuffle": "gateway.runtime.chance",
}
MAY_READ_TIME_AND_CHANCE = {"runtime/clock.py", "runtime/chance.py"}

PURE_ROOMS = {"wire", "decide", "core"}
BARRED_IN_PURE_ROOMS = {"asyncio", "time", "random", "logging", "socket", "threading", "grpc", "aiohttp"}

LINES_MAX = 500
LONGER_WITH_REASON: dict[str, str] = {}


def _files() -> list[Path]:
    return sorted(GATEWAY.rglob("*.py"))


def _room(path: Path) -> str:
    parts = path.relative_to(GATEWAY).parts
    return parts[0] if len(parts) > 1 else parts[0].removesuffix(".py")


def _imports(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "relative imports hide which room is meant"
            names.add(node.module)
            if node.module == "gateway":
                names.update(f"gateway.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("path", _files(), ids=lambda path: str(path.relative_to(GATEWAY)))
def test_a_room_imports_only_what_it_may(path: Path) -> None:
    room = _room(path)
    if room in COMPOSITION_ROOTS:
        return
    assert room in ALLOWED, f"{path}: a room that the table does not know; add it to ALLOWED with its directions"
    for name in _imports(ast.parse(path.read_text())):
        if not name.startswith("gateway."):
            continue
        other = name.split(".")[1]
        assert other == room or other in ALLOWED[room], f"{path}: {room} must not import {name}"


@pytest.mark.parametrize("path", _files(), ids=lambda path: str(path.relative_to(GATEWAY)))
def test_time_and_chance_are_passed_in(path: Path) -> None:
    relative = str(path.relative_to(GATEWAY))
    if relative in MAY_READ_TIME_AND_CHANCE:
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            used = ast.unparse(node)
            for banned, instead in BANNED_CALLS.items():
                found = used == banned or used.endswith("." + banned)
                assert not found, f"{path}:{node.lineno}: {used} is banned here; use {instead}"


@pytest.mark.parametrize(
    "path", [p for p in _files() if _room(p) in PURE_ROOMS], ids=lambda path: str(path.relative_to(GATEWAY))
)
def test_pure_rooms_do_no_io_and_read_no_clock(path: Path) -> None:
    for name in _imports(ast.parse(path.read_text())):
        top = name.split(".")[0]
        assert top not in BARRED_IN_PURE_ROOMS, f"{path}: {name} is barred here"


@pytest.mark.parametrize("path", _files(), ids=lambda path: str(path.relative_to(GATEWAY)))
def test_a_file_holds_one_idea(path: Path) -> None:
    relative = str(path.relative_to(GATEWAY))
    lines = len(path.read_text().splitlines())
    assert lines <= LINES_MAX or relative in LONGER_WITH_REASON, f"{path}: {lines} lines; split it, or give a reason"


def test_no_handler_swallows_every_error() -> None:
    for path in _files():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ExceptHandler):
                continue
            broad = node.type is None or ast.unparse(node.type) in {"Exception", "BaseException"}
            silent = all(isinstance(statement, ast.Pass | ast.Continue) for statement in node.body)
            assert not (broad and silent), f"{path}:{node.lineno}: a broad handler must say or count what it caught"


def test_the_grpc_and_protobuf_libraries_stay_in_their_places() -> None:
    for path in _files():
        relative = str(path.relative_to(GATEWAY))
        names = {name.split(".")[0] for name in _imports(ast.parse(path.read_text()))}
        if "grpc" in names:
            assert relative.startswith(("edge/grpcio", "fleet/grpc")), f"{relative}: grpcio stands behind its two faces"
        assert not names & {"google", "tritonclient"} or relative.startswith("cli"), f"{relative}: codecs are ours"
