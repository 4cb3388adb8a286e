"""The product kernels equal ``F.linear``, and a row does not depend on its neighbours."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from triton_mode import DEVICE, runs_triton

from quire.engine.cuda.linears import quantize_rows
from quire.engine.cuda.products import fixed_linear, grouped_linear, quantized

pytestmark = runs_triton


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("shape", [(1, 64, 64), (70, 33, 100), (3, 129, 7)])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(shape: tuple[int, int, int], bias: bool) -> None:
    rows, outputs, depth = shape
    x, weight = normal(rows, depth), normal(outputs, depth, seed=1)
    bias_O = normal(outputs, seed=2) if bias else None
    torch.testing.assert_close(
        fixed_linear(x, weight, bias_O), F.linear(x, weight, bias_O), atol=1e-4, rtol=1e-5
    )


def test_a_row_is_the_same_in_every_batch() -> None:
    x, weight = normal(130, 96), normal(40, 96, seed=1)
    whole = fixed_linear(x, weight)
    for rows in (slice(0, 1), slice(63, 66), slice(129, 130)):
        assert torch.equal(fixed_linear(x[rows], weight), whole[rows])


def test_float8_weights_are_scaled() -> None:
    x, weight = normal(5, 64), normal(24, 64, seed=1).to(torch.float8_e4m3fn)
    scale = normal(24, seed=2).abs()
    expected = F.linear(x, weight.float() * scale[:, None])
    torch.testing.assert_close(
        fixed_linear(x, weight, scale_O=scale), expected, atol=1e-4, rtol=1e-5
    )


@pytest.mark.parametrize("counts", [[0, 3, 0, 40, 1], [0, 0, 0, 0, 2], [17, 16, 15, 0, 0]])
def test_grouped(counts: list[int]) -> None:
    weight, bias = normal(5, 70, 48, seed=1), normal(5, 70, seed=2)
    x = normal(sum(counts), 48)
    ends = torch.tensor(counts, device=DEVICE).cumsum(0).to(torch.int32)
    out = grouped_linear(x, weight, ends, bias)
    expected = [
        F.linear(part, weight[expert], bias[expert]) for expert, part in enumerate(x.split(counts))
    ]
    torch.testing.assert_close(out, torch.cat(expected), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("size", [48, 2100])
def test_rows_are_quantised_in_one_launch(size: int) -> None:
    x = normal(4, size + 3)[:, :size] * torch.tensor([[1e-3], [1], [1e4], [0]]).to(DEVICE)
    tested, scale = quantized(x)
    expected, expected_scale = quantize_rows(x)
    torch.testing.assert_close(scale, expected_scale, atol=0, rtol=1e-6)
    # at most one step of E4M3 apart, where a quotient is between two; the interpreter's rounding
    # loses a carry into the exponent
    apart = (tested.float() - expected.float()).abs() > expected.float().abs() / 8 + 2**-9
    assert float(apart.float().mean()) <= (0.0 if DEVICE == "cuda" else 0.03)
    assert tested[:3].float().abs().amax(dim=1).tolist() == [448.0] * 3
