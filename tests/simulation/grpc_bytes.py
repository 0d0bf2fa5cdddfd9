"""gRPC above HTTP/2 as a peer of the product writes and reads it, without the product's code."""

from __future__ import annotations

import gzip
import re
import struct
from urllib.parse import unquote

from tests.simulation.http2_end import Fields

SERVICE = b"/inference.GRPCInferenceService/"
_UNITS_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")


def framed(message: bytes, *, compressed: bool = False) -> bytes:
    """A message behind its prefix."""
    if compressed:
        message = gzip.compress(message, mtime=0)
    return struct.pack(">BI", compressed, len(message)) + message


class Deframer:
    """Messages out of the pieces in which they come. Raises ValueError for what is none."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> list[bytes]:
        held, found = self._held + data, []
        while len(held) >= 5:
            flag, length = struct.unpack_from(">BI", held)
            if flag:
                raise ValueError(f"a message begins with {flag}, and no encoding was agreed on")
            if len(held) < 5 + length:
                break
            found.append(held[5 : 5 + length])
            held = held[5 + length :]
        self._held = held
        return found

    @property
    def idle(self) -> bool:
        """Between two messages."""
        return not self._held


def timeout_s(value: bytes) -> float:
    """Raises ValueError."""
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise ValueError(f"grpc-timeout is {value!r}")
    return int(found[1]) * _UNITS_S[found[2]]


def timeout_field(seconds: float, unit: str) -> tuple[bytes, bytes]:
    """`grpc-timeout` in one of the units `S`, `m`, `u`, if it comes out even, else in milliseconds."""
    count = seconds / _UNITS_S[unit.encode()]
    if abs(count - round(count)) > 1e-6 or count >= 1e8:
        unit, count = "m", seconds * 1000
    return b"grpc-timeout", f"{round(count)}{unit}".encode()


def end_fields(code: int, text: str) -> Fields:
    """`grpc-status`, and `grpc-message` if there is one."""
    fields = [(b"grpc-status", b"%d" % code)]
    if text:
        escaped = "".join(
            char if " " <= char <= "~" and char != "%" else "".join(f"%{byte:02X}" for byte in char.encode())
            for char in text
        )
        fields.append((b"grpc-message", escaped.encode()))
    return fields


def text_of(value: bytes) -> str:
    """Of a `grpc-message`."""
    return unquote(value.decode("ascii"))
