"""Texts as points on a sphere: hashed character n-grams, weighed by the logarithm of their number, projected at random.

Weinberger and others: "Feature Hashing for Large Scale Multitask Learning" (2009); Achlioptas: "Database-friendly
random projections" (2003), signs in place of normal deviates. Texts that share many n-grams get embeddings of a cosine
near 1; those that share none, near 0.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

DIMENSIONS = 64
BUCKETS = 4_096
SIZES = (2, 3, 4)
SEED = b"sluice embedder 1"


def projection() -> npt.NDArray[np.float32]:
    """The signs, +1 or -1, float32 [BUCKETS, DIMENSIONS]; from the seed by SHAKE-256, so equal everywhere."""
    random_bytes = hashlib.shake_256(SEED).digest(BUCKETS * DIMENSIONS // 8)
    bits = np.unpackbits(np.frombuffer(random_bytes, dtype=np.uint8)).reshape(BUCKETS, DIMENSIONS)
    return (2.0 * bits - 1.0).astype(np.float32)


def grams(text: str) -> Counter[int]:
    """How often each bucket is hit by the text's n-grams. Case and the amount of white space make no difference."""
    padded = f" {' '.join(text.casefold().split())} "
    found = (padded[start : start + size] for size in SIZES for start in range(len(padded) - size + 1))
    return Counter(zlib.crc32(gram.encode()) % BUCKETS for gram in found)


def embed(texts: Sequence[str], signs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """float32 [texts, DIMENSIONS], each row of length 1."""
    rows = np.empty((len(texts), DIMENSIONS), dtype=np.float32)
    for row, text in zip(rows, texts, strict=True):
        counted = grams(text)
        buckets = np.fromiter(counted.keys(), dtype=np.int64)
        weights = np.log1p(np.fromiter(counted.values(), dtype=np.float32))
        row[:] = weights @ signs[buckets]
        row /= np.linalg.norm(row)
    return rows
