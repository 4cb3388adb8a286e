"""Projections in the forms of the device: in FP8, or with one tile for every batch.

Each takes over the weights of a ``Linear`` and has the same interface.

Shapes: T tokens, O outputs, I inputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.engine.cuda.products import fixed_linear, quantized
from quire.engine.layers.linear import Linear

FLOAT8 = torch.float8_e4m3fn
_LARGEST = torch.finfo(FLOAT8).max
_LEAST_SCALE = 1e-12
_ALIGNMENT = 16
"""The FP8 product requires sizes that are multiples of this."""


def quantize_rows(x_TI: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` as float8 and the scale of each row, float32 ``[T, 1]``: ``x = float8 * scale``.

    The largest element of a row becomes the largest float8 (448 in E4M3).
    """
    largest_T1 = x_TI.abs().amax(dim=-1, keepdim=True).float()
    scale_T1 = (largest_T1 / _LARGEST).clamp_min(_LEAST_SCALE)
    return (x_TI.float() / scale_T1).clamp(-_LARGEST, _LARGEST).to(FLOAT8), scale_T1


class Float8Linear(Linear):
    """W8A8: weights in E4M3 with a scale per output, activations with a scale per token, products
    accumulated in float32 (Micikevicius et al., 2022). Without hardware support, only the weights
    are FP8.

    ``weight_OI`` is float8; ``scale_O`` float32. With ``batch_invariant`` activations are not
    quantised and the product uses the fixed tile.
    """

    def __init__(
        self, linear: Linear, scale_O: Tensor | None = None, *, batch_invariant: bool = False
    ) -> None:
        self.parts, self.arranged = linear.parts, linear.arranged
        self.delta, self.bias_O = linear.delta, linear.bias_O
        if scale_O is None:
            self.weight_OI, scale_O1 = quantize_rows(linear.weight_OI)
            self.scale_O = scale_O1[:, 0].contiguous()
        else:
            scaled = linear.weight_OI.float() / scale_O[:, None]
            self.weight_OI, self.scale_O = scaled.clamp(-_LARGEST, _LARGEST).to(FLOAT8), scale_O
        linear.weight_OI = torch.empty(0)
        is_aligned = all(size % _ALIGNMENT == 0 for size in self.weight_OI.shape)
        self._multiplies_float8 = (
            is_aligned and not batch_invariant and has_float8_products(self.weight_OI.device)
        )
        self._batch_invariant = batch_invariant

    def __call__(self, x: Tensor) -> Tensor:
        if self._multiplies_float8:
            y = self._scaled_product(x)
        elif self._batch_invariant:
            y = fixed_linear(x, self.weight_OI, self.bias_O, self.scale_O)
        else:
            weight_OI = (self.weight_OI.float() * self.scale_O[:, None]).to(x.dtype)
            y = F.linear(x, weight_OI, self.bias_O)
        return y if self.delta is None else self.delta.add_to(y, x)

    def _scaled_product(self, x_TI: Tensor) -> Tensor:
        on_device = x_TI.device.type == "cuda"  # elsewhere there may be no Triton
        quantized_TI, scale_T1 = quantized(x_TI) if on_device else quantize_rows(x_TI)
        y_TO: Tensor = torch._scaled_mm(
            quantized_TI,
            self.weight_OI.t(),
            scale_a=scale_T1,
            scale_b=self.scale_O[None],
            out_dtype=torch.bfloat16,
        )
        y_TO = y_TO.to(x_TI.dtype)
        return y_TO if self.bias_O is None else y_TO.add_(self.bias_O)


class FixedTileLinear(Linear):
    """A product in which a row's bits do not depend on the rest of the batch."""

    def __init__(self, linear: Linear) -> None:
        self.parts, self.arranged, self.delta = linear.parts, linear.arranged, linear.delta
        self.weight_OI, self.bias_O = linear.weight_OI, linear.bias_O

    def __call__(self, x: Tensor) -> Tensor:
        y = fixed_linear(x, self.weight_OI, self.bias_O)
        return y if self.delta is None else self.delta.add_to(y, x)


def has_float8_products(device: torch.device) -> bool:
    """Whether ``torch._scaled_mm`` takes scales per row and column there: Hopper and later (and
    CPUs, slowly, for tests)."""
    if device.type != "cuda":
        return True
    return torch.cuda.get_device_capability(device) >= (9, 0)
