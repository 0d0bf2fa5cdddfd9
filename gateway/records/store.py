"""Where lines go: the face that the record log writes through, and the words for what can go wrong there."""

from __future__ import annotations

import errno
from typing import Protocol

FAILURES = ("no_space", "permission", "missing", "locked", "io", "fsync")
"""Why a write failed, for the counter. All of them are tried again."""

_BY_ERRNO = {
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EFBIG: "no_space",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EROFS: "permission",
    errno.ENOENT: "missing",
    errno.ENOTDIR: "missing",
    errno.ESTALE: "missing",
    errno.EAGAIN: "locked",
}


def failure_reason(error: OSError) -> str:
    """The word of `FAILURES` for an error of the operating system."""
    return _BY_ERRNO.get(error.errno or 0, "io")


class RecordStore(Protocol):
    """Takes finished lines. Every method may block and runs in a worker; `append` and `sync` may run at the same time.

    All raise OSError. A failed `append` has left nothing behind, so that the same lines can be given again.
    """

    def append(self, lines: bytes) -> None:
        """Hand these complete lines to the operating system, all or none."""
        ...

    def sync(self) -> None:
        """Force what was appended to the disk."""
        ...

    def close(self) -> None:
        """Give everything back. Nothing is appended any more."""
        ...
