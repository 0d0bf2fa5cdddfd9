"""The admin token: a secret in a 0600 file, made at first start; whoever can read the file may ask the admin port.

The command line reads the same file with the same checks, so that both refuse a token which others could have seen.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from pathlib import Path

FILE = "admin-token"
_BYTES_MAX = 4096
_CHARACTERS_MIN = 32


class TokenError(Exception):
    """The token cannot be used; the text says why and what to do."""


def ensure_token(state_dir: Path) -> str:
    """The token of this directory, made if there is none. Raises `TokenError`."""
    path = state_dir / FILE
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise TokenError(
            f"the directory {state_dir} for the admin token cannot be made ({error.strerror}): make it, or set "
            "`gateway.state_dir` in fleet.yaml"
        ) from error
    if not path.exists() and not path.is_symlink():
        _make(path)
    return read_token(state_dir)


def read_token(state_dir: Path) -> str:
    """The token of this directory. Raises `TokenError` if there is none, or if others than its owner can read or
    replace it.
    """
    path = state_dir / FILE
    _check_directory(state_dir)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise TokenError(f"there is no admin token at {path}: a gateway makes it when it starts") from None
    except OSError as error:
        raise TokenError(
            f"the admin token {path} cannot be read ({error.strerror}): it must be a plain file of the user that runs "
            "the gateway; remove what is there and start the gateway again"
        ) from error
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise TokenError(f"{path} is not a plain file: remove it and start the gateway again")
        if about.st_uid not in (os.geteuid(), 0):
            raise TokenError(
                f"the admin token {path} belongs to user id {about.st_uid}, not to {os.geteuid()} who runs this: "
                "remove it and start the gateway again"
            )
        if about.st_mode & 0o077:
            raise TokenError(
                f"the admin token {path} can be read by others (mode {stat.S_IMODE(about.st_mode):04o}), so it is no "
                "secret any more: remove it and start the gateway again, which makes a new one"
            )
        token = os.read(fd, _BYTES_MAX).decode("ascii", "replace").strip()
    finally:
        os.close(fd)
    if len(token) < _CHARACTERS_MIN or not token.isascii() or not token.isprintable() or " " in token:
        raise TokenError(
            f"the admin token {path} is damaged or too short (at least {_CHARACTERS_MIN} characters): remove it and "
            "start the gateway again"
        )
    return token


def same(given: str, token: str) -> bool:
    """Whether it is the token; takes as long for a near miss as for a far one."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def _make(path: Path) -> None:
    """Write a new token so that nobody ever sees half of one, and a second gateway's start does not replace it."""
    fresh = path.with_name(f".{FILE}-{secrets.token_hex(8)}")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, secrets.token_urlsafe(32).encode() + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)
        try:
            os.link(fresh, path)
        except FileExistsError:
            return  # another gateway was quicker; its token is as good
        finally:
            os.unlink(fresh)
    except OSError as error:
        raise TokenError(
            f"the admin token cannot be written to {path} ({error.strerror}): make the directory writable, or set "
            "`gateway.state_dir` in fleet.yaml"
        ) from error


def _check_directory(state_dir: Path) -> None:
    try:
        about = os.stat(state_dir)
    except OSError as error:
        raise TokenError(
            f"there is no admin token: {state_dir} cannot be looked at ({error.strerror}); a gateway makes it when "
            "it starts"
        ) from error
    if about.st_mode & 0o022:
        raise TokenError(
            f"others can replace what is in {state_dir} (mode {stat.S_IMODE(about.st_mode):04o}), the admin token too: "
            f"chmod go-w {state_dir}"
        )
