"""Parameters of several rows as columns, on the host and on the device.

Shapes: S rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.decoding import Params

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


def numbers(params: Sequence[Params], name: str) -> F64:
    """A scalar parameter of every row ``[S]``."""
    return np.array([scalar(one, name) for one in params], np.float64)


def scalar(params: Params, name: str) -> float:
    value = params[name]
    assert isinstance(value, int | float)
    return float(value)


def entries(params: Params, name: str) -> list[int | float | list[int]]:
    """A list parameter of one row."""
    value = params[name]
    assert isinstance(value, list)
    return value


def column(values_S: F64, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """``[S, 1]`` on the device, rounded to ``dtype`` once."""
    return torch.from_numpy(values_S).to(dtype).to(device)[:, None]
