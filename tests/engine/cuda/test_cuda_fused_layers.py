"""The fused parts of a layer equal the separate parts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from triton_mode import DEVICE, runs_triton

from quire.engine.cuda.fused_layers import added, gated, rotate_and_write
from quire.engine.kv_cache.torch_pool import LayerCache
from quire.engine.layers.linear import Linear
from quire.engine.layers.mlp import Activation, activate
from quire.engine.layers.parameters import Parameters
from quire.engine.layers.rotary import Rotation, rotate

NEAR = {"atol": 1e-6, "rtol": 1e-5}


def normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def empty_cache(num_slots: int, num_kv_heads: int, head_dim: int) -> LayerCache:
    shape = (num_slots, num_kv_heads, head_dim)
    return LayerCache(torch.zeros(shape, device=DEVICE), torch.zeros(shape, device=DEVICE))


@runs_triton
@pytest.mark.parametrize(
    ("heads", "rotary_dim"), [((4, 2, 16), 16), ((6, 1, 12), 12), ((3, 3, 80), 32), ((2, 1, 8), 4)]
)
@pytest.mark.parametrize("num_tokens", [1, 5])
def test_rotation_and_the_cache_write(
    heads: tuple[int, int, int], rotary_dim: int, num_tokens: int
) -> None:
    num_heads, num_kv_heads, head_dim = heads
    qkv_THD = normal(num_tokens, num_heads + 2 * num_kv_heads, head_dim)
    num_rotated = num_heads + num_kv_heads
    angles = normal(num_tokens, 1, rotary_dim, seed=1)
    rotation = Rotation(angles.cos(), angles.sin())
    slots = torch.tensor([7, 0, 3, 9, 4][:num_tokens], device=DEVICE)
    tested, expected = (empty_cache(11, num_kv_heads, head_dim) for _ in range(2))
    q_TND = rotate_and_write(
        qkv_THD[:, :num_rotated], qkv_THD[:, num_rotated:], rotation, slots, tested
    )
    qk_THD = rotate(qkv_THD[:, :num_rotated], rotation)
    expected.write(slots, qk_THD[:, num_heads:], qkv_THD[:, num_rotated:])
    torch.testing.assert_close(q_TND, qk_THD[:, :num_heads], **NEAR)
    torch.testing.assert_close(tested.keys_SKD, expected.keys_SKD, **NEAR)
    assert torch.equal(tested.values_SKD, expected.values_SKD)


@runs_triton
def test_keys_of_normalised_heads_lie_apart_from_the_values() -> None:
    """A norm of queries and keys returns new memory with another stride."""
    qk_THD, v_TKD = normal(3, 5, 16), normal(3, 8, 16, seed=2)[:, 6:7]
    rotation = Rotation(normal(3, 1, 16, seed=3), normal(3, 1, 16, seed=4))
    slots = torch.tensor([2, 5, 1], device=DEVICE)
    tested = empty_cache(6, 1, 16)
    q_TND = rotate_and_write(qk_THD, v_TKD, rotation, slots, tested)
    rotated = rotate(qk_THD, rotation)
    torch.testing.assert_close(q_TND, rotated[:, :4], **NEAR)
    torch.testing.assert_close(tested.keys_SKD[slots], rotated[:, 4:], **NEAR)
    assert torch.equal(tested.values_SKD[slots], v_TKD)


@runs_triton
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "clamped_swiglu"])
@pytest.mark.parametrize("width", [24, 1500])
def test_activation_and_gate(activation: Activation, width: int) -> None:
    gate_up = 5 * normal(3, 2 * width)
    gate, up = gate_up.chunk(2, dim=-1)
    torch.testing.assert_close(
        gated(activation, gate_up), activate(activation, gate, up), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("bias", [False, True])
def test_a_projection_onto_the_residual_stream(bias: bool) -> None:
    parameters = Parameters(torch.device(DEVICE), torch.float32)
    linear = Linear(parameters, {"a": 24}, 40, bias=bias)
    for destination in parameters.destinations.values():
        destination.target.copy_(normal(*destination.target.shape, seed=5))
    x_TO, h_TI = normal(3, 24), normal(3, 40, seed=6)
    expected = x_TO + linear(h_TI)
    torch.testing.assert_close(added(x_TO.clone(), linear, h_TI), expected, **NEAR)


def test_the_output_of_adapters_is_not_lost() -> None:
    class Delta:
        def add_to(self, y_TO: Tensor, x_TI: Tensor) -> Tensor:
            return y_TO.add_(1.0)

    linear = Linear(Parameters(torch.device(DEVICE), torch.float32), {"a": 8}, 4)
    linear.weight_OI.copy_(normal(8, 4))
    x_TO, h_TI = normal(2, 8), normal(2, 4, seed=1)
    expected = x_TO + linear(h_TI) + 1.0
    linear.delta = Delta()
    torch.testing.assert_close(added(x_TO, linear, h_TI), expected, **NEAR)
