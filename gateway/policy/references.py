"""The files that policies name: they must be there and be what they are taken for, before anything uses them."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from gateway.policy.checks import Fleet, Model
from gateway.policy.files import KEYS_BYTES_MAX, read_bounded, reason
from gateway.policy.identity_checks import check_identity_files, check_tls_files
from gateway.policy.keys import parse_keys
from gateway.policy.problems import Path, PolicyError, Problems, printable

REQUEST_BYTES_MAX = 16 * 1024 * 1024


class _Tensor(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]


class _Request(msgspec.Struct):
    inputs: list[_Tensor]


def check_keys_file(fleet: Fleet, directory: str, problems: Problems) -> None:
    """The key file is there and good. Its content is no part of the revision: keys are reloaded by themselves."""
    name = fleet.get("identity", "keys_file")
    if not name or fleet.get("identity", "mode") not in ("api_key", "any"):
        return
    path: Path = ("identity", "keys_file")
    shown = os.path.normpath(os.path.join(directory, name))
    data = _read(fleet, path, shown, KEYS_BYTES_MAX, problems)
    if data is None:
        return
    try:
        parse_keys(data, shown)
    except PolicyError as error:
        problems.take(error)


def check_secret_files(fleet: Fleet, directory: str, problems: Problems) -> None:
    """Whatever else identities and TLS are made from is there and good."""
    check_identity_files(fleet, directory, _read, problems)
    check_tls_files(fleet, directory, _read, problems)


def check_replica_files(fleet: Fleet, directory: str, problems: Problems) -> None:
    """A file of replicas may appear later (something else writes it), its directory may not."""
    pools = fleet.get("pools")
    for pool in pools if isinstance(pools, dict) else ():
        path: Path = ("pools", pool, "replicas", "file", "path")
        name = fleet.get(*path)
        if not name:
            continue
        folder = os.path.dirname(os.path.normpath(os.path.join(directory, name)))
        if not os.path.isdir(folder):
            message = f"there is no directory {printable(folder, 200)} for this file"
            problems.add(fleet.file, fleet.where(*path), path, message, "paths are relative to fleet.yaml")


def read_request_file(model: Model, folder: str, problems: Problems) -> tuple[str, bytes] | None:
    """The warm-up request of a model as (path, bytes), or None if there is none or it is not good."""
    name = model.get("warmup", "request_file")
    if not name:
        return None
    path: Path = ("warmup", "request_file")
    shown = os.path.normpath(os.path.join(folder, name))
    limit = model.get("limits", "body_bytes_max") or REQUEST_BYTES_MAX
    data = _read(model, path, shown, min(limit, REQUEST_BYTES_MAX), problems)
    if data is None:
        return None
    try:
        empty = not msgspec.json.decode(data, type=_Request).inputs
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"{printable(shown, 200)} is not a KServe v2 request: {printable(str(error), 200)}"
        remedy = "write a JSON object with `inputs`, each with `name`, `datatype`, `shape` and `data`"
        problems.add(model.file, model.where(*path), path, message, remedy)
        return None
    if empty:
        problems.add(model.file, model.where(*path), path, f"{printable(shown, 200)} has no inputs", "give some")
        return None
    return shown, data


def _read(document: Any, path: Path, shown: str, bytes_max: int, problems: Problems) -> bytes | None:
    where = document.where(*path)
    try:
        data = read_bounded(shown, bytes_max)
    except FileNotFoundError:
        remedy = f"paths are relative to {os.path.basename(document.file)}"
        problems.add(document.file, where, path, f"there is no file {printable(shown, 200)}", remedy)
        return None
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        message = f"{printable(shown, 200)} cannot be read: {why}"
        problems.add(document.file, where, path, message, "see to its permissions and its kind")
        return None
    if len(data) > bytes_max:
        message = f"{printable(shown, 200)} is larger than {bytes_max} bytes"
        problems.add(document.file, where, path, message, "make it smaller, or raise the limit")
        return None
    return data
