"""Tensors as they travel."""

from __future__ import annotations

import struct


def packed_bytes(*elements: bytes) -> bytes:
    """BYTES elements as raw contents."""
    return b"".join(struct.pack("<I", len(each)) + each for each in elements)
