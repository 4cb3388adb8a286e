"""FP8 projections and grouped experts against the layers that they replace, on any device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from triton_mode import DEVICE, runs_triton

from quire.engine.cuda.grouped_experts import GroupedExperts
from quire.engine.cuda.linears import FLOAT8, Float8Linear, quantize_rows
from quire.engine.cuda.products import ExpertWeights, few_pairs
from quire.engine.layers.experts import Experts, ExpertsConfig
from quire.engine.layers.linear import Linear
from quire.engine.layers.mlp import activate
from quire.engine.layers.parameters import Parameters


def filled(parameters: Parameters) -> None:
    generator = torch.Generator().manual_seed(3)
    for name in sorted(parameters.destinations):
        target = parameters.destinations[name].target
        target.copy_(torch.randn(target.shape, generator=generator) * 0.3)


def linear(outputs: int, inputs: int, *, bias: bool = True, dtype: torch.dtype) -> Linear:
    parameters = Parameters(torch.device(DEVICE), dtype)
    made = Linear(parameters, {"a": outputs}, inputs, bias=bias)
    filled(parameters)
    return made


def normal(*size: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(9)).to(DEVICE, dtype)


def test_rows_are_quantised_to_the_nearest() -> None:
    x = normal(5, 64, dtype=torch.float32) * torch.tensor([[1e-3], [1], [50], [1e4], [0]]).to(
        DEVICE
    )
    quantized, scale = quantize_rows(x)
    assert quantized.dtype == FLOAT8
    back = quantized.float() * scale
    # E4M3 has 3 bits after the leading one: an error of up to 1/16 of the value, and near zero of
    # half the smallest step, 2^-10 of the scale
    assert bool(((back - x).abs() <= x.abs() / 16 + scale * 2**-10).all())
    assert quantized[:4].float().abs().amax(dim=1).tolist() == [448.0] * 4
    assert not back[4].any()


@pytest.mark.parametrize("bias", [False, True])
def test_float8_product(bias: bool) -> None:
    plain = linear(48, 64, bias=bias, dtype=torch.bfloat16)
    weight = plain.weight_OI.clone()
    tested = Float8Linear(plain)
    x = normal(6, 64, dtype=torch.bfloat16)
    quantized, scale = quantize_rows(x)
    stored = tested.weight_OI.float() * tested.scale_O[:, None]
    expected = F.linear(quantized.float() * scale, stored)
    if plain.bias_O is not None:
        expected = expected + plain.bias_O.float()
    torch.testing.assert_close(tested(x).float(), expected, atol=0.05, rtol=2**-7)
    exact = F.linear(x.float(), weight.float(), None if not bias else plain.bias_O.float())
    relative = (tested(x).float() - exact).norm() / exact.norm()
    assert float(relative) < 0.06
    assert plain.weight_OI.numel() == 0  # its memory is taken over


def test_sizes_that_float8_products_do_not_take() -> None:
    plain = linear(20, 50, dtype=torch.bfloat16)
    tested = Float8Linear(plain)
    x = normal(3, 50, dtype=torch.bfloat16)
    stored = (tested.weight_OI.float() * tested.scale_O[:, None]).bfloat16()
    assert torch.equal(tested(x), F.linear(x, stored, plain.bias_O))


def test_scales_of_a_checkpoint_give_its_own_weights_back() -> None:
    plain = linear(32, 64, dtype=torch.bfloat16)
    stored, scale = quantize_rows(plain.weight_OI * 0.7)
    scale = scale * 1.37  # any scale, not the one that Quire would choose
    plain.weight_OI = (stored.float() * scale).bfloat16()
    tested = Float8Linear(plain, scale_O=scale[:, 0])
    assert torch.equal(tested.weight_OI.view(torch.uint8), stored.view(torch.uint8))


@runs_triton
@pytest.mark.parametrize("sizes", [(600, 30), (40, 520)])
def test_pairs_of_more_than_a_tile(sizes: tuple[int, int]) -> None:
    size, width = sizes
    generator = torch.Generator().manual_seed(1)
    gate_up, down = (
        torch.randn(5, *shape, generator=generator).to(DEVICE) * 0.1
        for shape in ((2 * width, size), (size, width))
    )
    x, shares = normal(2, size, dtype=torch.float32), normal(2, 2, dtype=torch.float32)
    chosen = torch.tensor([[4, 0], [2, 4]], device=DEVICE)
    out = few_pairs(x, chosen, shares, ExpertWeights("gelu_tanh", gate_up, down))
    for token in range(2):
        expected = torch.zeros(size, device=DEVICE)
        for expert, share in zip(chosen[token], shares[token], strict=True):
            gate, up = (gate_up[expert] @ x[token]).chunk(2)
            expected += share * (down[expert] @ activate("gelu_tanh", gate, up))
        torch.testing.assert_close(out[token], expected, atol=1e-4, rtol=1e-4)


def experts(*, bias: bool, dtype: torch.dtype, scoring: str = "all") -> Experts:
    parameters = Parameters(torch.device(DEVICE), dtype)
    config = ExpertsConfig(
        num_experts=6,
        top_k=2,
        intermediate_size=24,
        scoring=scoring,  # type: ignore[arg-type]
        expert_bias=bias,
        storage="gpt_oss" if bias else "qwen3_moe",
        router_bias=bias,
    )
    made = Experts(parameters, "m", 32, config)
    filled(parameters)
    return made


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 9])
def test_experts_by_the_library(bias: bool, num_tokens: int) -> None:
    x = normal(num_tokens, 32, dtype=torch.bfloat16)
    expected = experts(bias=bias, dtype=torch.bfloat16)(x)
    tested = GroupedExperts(experts(bias=bias, dtype=torch.bfloat16))
    assert tested._library
    torch.testing.assert_close(tested(x), expected, atol=0.05, rtol=2**-6)


@runs_triton
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 9])
def test_experts_by_the_kernels(bias: bool, batch_invariant: bool, num_tokens: int) -> None:
    x = normal(num_tokens, 32, dtype=torch.float32)
    plain = experts(bias=bias, dtype=torch.float32, scoring="chosen")
    expected = plain(x)
    tested = GroupedExperts(plain, batch_invariant=batch_invariant)
    assert tested._are_few(x) == (num_tokens == 1 and not batch_invariant)
    torch.testing.assert_close(tested(x), expected, atol=1e-4, rtol=1e-4)
    assert plain.gate_up_EOI.numel() == 0


@runs_triton
@pytest.mark.parametrize("num_tokens", [1, 9])
def test_experts_in_float8(num_tokens: int) -> None:
    x = normal(num_tokens, 32, dtype=torch.float32)
    plain = experts(bias=False, dtype=torch.float32)
    expected = plain(x)
    tested = GroupedExperts(plain, float8=True)
    assert tested.gate_up_EOI.dtype == tested.down_EOI.dtype == FLOAT8
    assert float((tested(x) - expected).norm() / expected.norm()) < 0.06
