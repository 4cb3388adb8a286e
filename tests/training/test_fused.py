"""The kernel for AMX against attention in fp32, and where it is not used."""

import pytest
import torch

from training.attention import RowGroup, attend
from training.fused import attention_for, fused_attend, library

GROUPS = (RowGroup(1, 16), RowGroup(3, 48), RowGroup(2, 208), RowGroup(1, 336))
NUM_TOKENS = sum(group.num_rows * group.length for group in GROUPS)

needs_amx = pytest.mark.skipif(library() is None, reason="this processor has no AMX for bf16")


def _errors(attention: object, scale: float) -> list[float]:
    """Return how far the output and the three gradients in bf16 are from those in fp32."""
    torch.manual_seed(0)
    inputs = [(torch.randn(NUM_TOKENS, heads, 32) * scale).bfloat16() for heads in (8, 4, 4)]
    pull = torch.randn(NUM_TOKENS, 256).bfloat16()
    results = []
    for function, dtype in ((attention, torch.bfloat16), (attend, torch.float32)):
        assert callable(function)
        q, k, v = (x.to(dtype).requires_grad_() for x in inputs)
        output = function(q, k, v, GROUPS)
        results.append([output.detach(), *torch.autograd.grad(output, (q, k, v), pull.to(dtype))])
    return [
        float((ours.float() - exact).norm() / exact.norm())
        for ours, exact in zip(*results, strict=True)
    ]


@needs_amx
@pytest.mark.parametrize("scale", [1.0, 3.0, 20.0])
def test_the_kernel_is_at_least_as_exact_as_tiles(scale: float) -> None:
    kernel, tiles = _errors(fused_attend, scale), _errors(attend, scale)
    assert all(ours <= theirs for ours, theirs in zip(kernel, tiles, strict=True))
    assert max(kernel[0], kernel[3]) < 0.005


def test_other_types_and_head_sizes_have_tiles() -> None:
    assert attention_for(torch.float32, 32) is attend
    assert attention_for(torch.bfloat16, 64) is attend
    assert attention_for(torch.bfloat16, 32) is (attend if library() is None else fused_attend)
