"""The time that an open loop runs on.

Event loops round their timers to whole milliseconds, which would send calls up to a millisecond late, and in clumps.
A timer of the kernel that the loop watches as a file is exact to some tens of microseconds and costs no spinning.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from typing import Protocol

from load.errors import LoadError

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_LIBC = ctypes.CDLL(None, use_errno=True)
_NS = 1_000_000_000


class Clock(Protocol):
    """Monotonic time, and one alarm."""

    def now_ns(self) -> int:
        """Nanoseconds since some point in the past."""

    def wake_at(self, when_ns: int, callback: Callable[[], None]) -> None:
        """Call `callback` once, not before `when_ns`. It takes the place of an alarm that is set already."""

    def close(self) -> None:
        """Drop the alarm and what it holds."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class KernelClock:
    """CLOCK_MONOTONIC, and a timerfd of Linux that the running loop watches. Raises LoadError where there is none."""

    now_ns = staticmethod(time.monotonic_ns)

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback: Callable[[], None] | None = None
        self._spec = _Itimerspec()
        self._file = _LIBC.timerfd_create(_CLOCK_MONOTONIC, _TFD_FLAGS)
        if self._file < 0:
            raise LoadError(f"this kernel gives no timer: {os.strerror(ctypes.get_errno())}; see ulimit -n")
        self._loop.add_reader(self._file, self._rang)

    def wake_at(self, when_ns: int, callback: Callable[[], None]) -> None:
        self._callback = callback
        value = self._spec.value
        value.seconds, value.nanoseconds = divmod(max(1, when_ns), _NS)  # zero would switch the alarm off
        if _LIBC.timerfd_settime(self._file, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None):
            raise LoadError(f"the kernel's timer cannot be set: {os.strerror(ctypes.get_errno())}")

    def close(self) -> None:
        self._callback = None
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _rang(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # it was set anew meanwhile
            return
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()
