"""How many file descriptors this process may have open: every connection is one."""

from __future__ import annotations

import resource


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one, which needs no rights, and return it. The soft limit is 1024 on many
    systems for the sake of programs that use `select`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
