"""Reading the files of a policy directory: bounded, never blocking on something that is not a file, and telling of
everything that would silently not be read.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass

from gateway.policy.problems import START, Problems

POLICY_BYTES_MAX = 256 * 1024
KEYS_BYTES_MAX = 1024 * 1024
MODEL_FILES_MAX = 1000

_FLEET = "fleet.yaml"
_MODELS = "models"


class NotAFile(OSError):
    """There is something of that name, but it is no regular file."""


def read_bounded(path: str, bytes_max: int) -> bytes:
    """The content of a regular file, at most one byte more than `bytes_max` of it (so that the caller sees that it is
    too large). Symbolic links are followed. Raises OSError.
    """
    # O_NONBLOCK: opening a FIFO that nobody writes to would hang the gateway's start.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", closefd=True) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotAFile(errno.EINVAL, "not a regular file")
        return file.read(bytes_max + 1)


def reason(error: OSError) -> str:
    """Why a file could not be read, without its path."""
    return (error.strerror or type(error).__name__).lower()


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A policy file: its name relative to the directory with `/`, the name to show, and its bytes."""

    name: str
    shown: str
    data: bytes


def read_directory(directory: str, problems: Problems) -> tuple[SourceFile | None, list[SourceFile]]:
    """`fleet.yaml` (None if it cannot be read) and the files of models, in order of their names."""
    if not os.path.isdir(directory):
        problems.add(directory, START, (), "there is no such directory", "name the directory that holds fleet.yaml")
        return None, []
    fleet = _read(directory, _FLEET, problems)
    _others_at_top(directory, problems)
    return fleet, _models(directory, problems)


def _read(directory: str, name: str, problems: Problems) -> SourceFile | None:
    shown = os.path.join(directory, name)
    try:
        return SourceFile(name, shown, read_bounded(shown, POLICY_BYTES_MAX))
    except FileNotFoundError:
        problems.add(shown, START, (), "there is no such file", "make it: docs/policies.md has an example")
    except OSError as error:
        problems.add(shown, START, (), f"cannot be read: {reason(error)}", "see to its permissions and its kind")
    return None


def _others_at_top(directory: str, problems: Problems) -> None:
    for name in _visible(directory, problems):
        shown = os.path.join(directory, name)
        lower = name.lower()
        if lower in ("fleet.yml", "fleet.json", "fleet.yaml") and name != _FLEET:
            problems.add(shown, START, (), "would not be read", f"call it `{_FLEET}`")
        elif name in ("model", "Models") and os.path.isdir(shown):
            problems.add(shown, START, (), "would not be read", f"call it `{_MODELS}`")


def _models(directory: str, problems: Problems) -> list[SourceFile]:
    folder = os.path.join(directory, _MODELS)
    if not os.path.isdir(folder):
        problems.add(folder, START, (), "there is no such directory", "put one file per model in it")
        return []
    found = []
    names = _visible(folder, problems)
    for name in names:
        shown = os.path.join(folder, name)
        stem, extension = os.path.splitext(name)
        if os.path.isdir(shown):
            problems.add(shown, START, (), "is a directory and would not be read", f"put the files into {folder}")
        elif extension == ".yaml":
            found.append(name)
        elif extension.lower() in (".yml", ".yaml", ".json"):
            problems.add(shown, START, (), "would not be read", f"call it `{stem}.yaml`")
        else:
            problems.add(shown, START, (), "would not be read", "only `.yaml` files belong here: move it elsewhere")
    if not names:
        problems.add(folder, START, (), "there is no model in it", "put one file per model in it")
    if len(found) > MODEL_FILES_MAX:
        message = f"there are {len(found)} files in it, more than {MODEL_FILES_MAX}"
        problems.add(folder, START, (), message, "run another gateway for some of the models")
        found = found[:MODEL_FILES_MAX]
    files = (_read(directory, f"{_MODELS}/{name}", problems) for name in found)
    return [file for file in files if file is not None]


def _visible(folder: str, problems: Problems) -> list[str]:
    """Names in a folder, sorted, without hidden ones (a mounted ConfigMap has `..data`, editors have swap files) and
    without the backup copies that editors leave.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        problems.add(folder, START, (), f"cannot be read: {reason(error)}", "see to its permissions")
        return []
    return [name for name in names if not name.startswith(".") and not name.endswith("~") and not name.startswith("#")]
