"""Where the Triton kernels run: on a device, or in Triton's interpreter.

The interpreter must be selected before anything imports triton, so it is selected outside:
``TRITON_INTERPRET=1 python -m pytest tests/engine/cuda``.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

runs_triton = pytest.mark.skipif(
    find_spec("triton") is None or (DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"),
    reason="Triton kernels need a CUDA device, or TRITON_INTERPRET=1 and the package triton",
)
