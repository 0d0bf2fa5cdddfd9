"""What is wrong with a policy: each problem with file, line, column, and what to write instead.

A loader that stops at the first mistake costs an SRE one round trip per mistake, so problems are collected and raised
together as one `PolicyError`. The collection is bounded: a file of nothing but mistakes must not become a message of
its size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.printable import printable as escaped

PROBLEMS_MAX = 200
"""More problems than this are counted, not kept."""

Step = str | int
Path = tuple[Step, ...]


class Position(NamedTuple):
    """A place in a file; both numbers count from 1, columns in characters."""

    line: int
    column: int


START = Position(1, 1)


@dataclass(frozen=True, slots=True)
class PolicyProblem:
    """One mistake. `remedy` says what to do, `allowed` lists what may stand there; either may be empty."""

    file: str
    line: int
    column: int
    path: str
    """The key, dotted, as in `deadline.default_ms` or `pools.cpu.replicas.static[0].grpc`; "" for the whole file."""
    message: str
    remedy: str = ""
    allowed: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = f"{self.file}:{self.line}:{self.column}: " + (f"{self.path}: " if self.path else "") + self.message
        if self.remedy:
            head += f"; {self.remedy}"
        if not self.allowed:
            return head
        return head + ("" if head.endswith(("?", ".")) else ";") + f" allowed: {', '.join(self.allowed)}"


class PolicyError(Exception):
    """The policies cannot be used. `problems` is sorted by file and place; `left_out` counts those beyond the bound."""

    def __init__(self, problems: Iterable[PolicyProblem], left_out: int = 0) -> None:
        self.problems = tuple(problems)
        self.left_out = left_out
        super().__init__(self.problems, left_out)

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems]
        if self.left_out:
            lines.append(f"… and {self.left_out} more problems")
        return "\n".join(lines)


class Problems:
    """Collects problems, up to a bound."""

    def __init__(self) -> None:
        self._kept: list[PolicyProblem] = []
        self._left_out = 0

    def __len__(self) -> int:
        return len(self._kept) + self._left_out

    def add(
        self,
        file: str,
        where: Position,
        path: Path,
        message: str,
        remedy: str = "",
        allowed: Iterable[str] = (),
    ) -> None:
        if len(self._kept) >= PROBLEMS_MAX:
            self._left_out += 1
            return
        self._kept.append(
            PolicyProblem(file, where.line, where.column, path_text(path), message, remedy, tuple(allowed))
        )

    def take(self, error: PolicyError) -> None:
        """Add all problems of an error that another loader raised."""
        self._kept.extend(error.problems)
        self._left_out += error.left_out

    def raise_if_any(self) -> None:
        if self._kept:
            raise PolicyError(sorted(self._kept, key=lambda p: (p.file, p.line, p.column, p.path)), self._left_out)


def path_text(path: Path) -> str:
    """A path as people write it: `split["2"]`, `versions[0]`, `pools.cpu`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.replace("-", "_").isidentifier() and len(step) <= 64:
            text += f".{step}" if text else step
        else:
            text += f'["{printable(step)}"]'
    return text


def printable(text: str, length_max: int = 60) -> str:
    """Text from a file, fit for one line of a message: control characters escaped, shortened."""
    shown = escaped(text[: length_max + 1])
    return shown if len(text) <= length_max else shown[:length_max] + "…"
