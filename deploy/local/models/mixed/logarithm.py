"""The arithmetic of `mixed`: one function seen in three datatypes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def logarithm(
    x: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.float16]]:
    """y = ln x (-inf for 0, NaN below 0), z = the binary exponent of x (0 if there is none), h = x in half precision.

    So finite inputs give outputs that are not: y from 0 down, h from 65520 up. All have the shape of `x`.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        y = np.log(x)
        z = np.where(np.isfinite(x), np.frexp(np.where(np.isfinite(x), x, 0.0))[1], 0).astype(np.int32)
        h = x.astype(np.float16)
    return y, z, h
