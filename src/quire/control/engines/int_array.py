"""Converts lists of numbers to arrays of a message."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def i32(values: list[int]) -> NDArray[np.int32]:
    return np.fromiter(values, np.int32, len(values))  # np.array would search for nested lists
