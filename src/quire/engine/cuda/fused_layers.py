"""A decoder's layers with fewer kernel launches: fused forms of the same parts.

Queries and keys are rotated and written to the cache in one launch, activation and gate are one,
and a projection adds its output to the residual stream itself. The weights are taken over from the
layers; the results are equal up to rounding.

Shapes: T tokens, N heads, K KV heads, D head size, H hidden size, I intermediate size.
"""

from __future__ import annotations

from torch import Tensor

from quire.engine.cuda.optional import load_kernels
from quire.engine.kv_cache.torch_pool import LayerCache
from quire.engine.layers.attention import Attention, ModelStep
from quire.engine.layers.linear import Linear
from quire.engine.layers.mlp import Activation, GatedMLP
from quire.engine.layers.rotary import Rotation
from quire.engine.models.decoder import DecoderLayer

_GATE_BLOCK = 1024


class FusedAttention(Attention):
    """Takes over the parts of ``attention``."""

    def __init__(self, attention: Attention) -> None:
        vars(self).update(vars(attention))

    def heads(self, x_TH: Tensor, step: ModelStep) -> Tensor:
        num_rotated = self.num_heads + self.num_kv_heads
        qkv_THD = self.qkv(x_TH).view(x_TH.shape[0], -1, self.head_dim)
        qk_THD = qkv_THD[:, :num_rotated]
        if self.qk_norm is not None:
            qk_THD = self.qk_norm(qk_THD)
        group, cache = step.groups[self.group], step.caches[self.layer]
        rotation = step.rotations[self.rope]
        q_TND = rotate_and_write(qk_THD, qkv_THD[:, num_rotated:], rotation, group.slots_T, cache)
        if rotation.query_scale_T11 is not None:
            q_TND = q_TND.mul_(rotation.query_scale_T11)
        return group.plan.attend(q_TND, cache, self.attributes)


class FusedMLP(GatedMLP):
    """Takes over the parts of ``mlp``."""

    def __init__(self, mlp: GatedMLP) -> None:
        vars(self).update(vars(mlp))

    def hidden(self, x_TH: Tensor) -> Tensor:
        return gated(self.activation, self.gate_up(x_TH))


class FusedLayer(DecoderLayer):
    """Takes over the parts of ``layer``, whose attention and MLP have been adapted already."""

    def __init__(self, layer: DecoderLayer) -> None:
        vars(self).update(vars(layer))
        between = (layer.attention_output_norm, layer.mlp_output_norm, layer.combine)
        self._adds_at_once = layer.residual_multiplier == 1 and all(one is None for one in between)

    def __call__(self, x_TH: Tensor, step: ModelStep) -> Tensor:
        """Run the layer on ``x_TH``, which is changed in place."""
        attention_norm, mlp_norm = self.attention_norm, self.mlp_norm
        if not self._adds_at_once or attention_norm is None or mlp_norm is None:
            return super().__call__(x_TH, step)
        heads_TN = self.attention.heads(attention_norm(x_TH), step)
        x_TH = added(x_TH, self.attention.output, heads_TN)
        normed_TH = mlp_norm(x_TH)
        if isinstance(self.mlp, GatedMLP):
            return added(x_TH, self.mlp.down, self.mlp.hidden(normed_TH))
        return self.mlp(normed_TH).add_(x_TH)


def added(x_TO: Tensor, linear: Linear, h_TI: Tensor) -> Tensor:
    """``x + linear(h)``. A plain product adds to ``x`` in place, without a pass of its own; the sum
    is rounded once, not twice."""
    if type(linear) is Linear and linear.delta is None and linear.bias_O is None:
        return x_TO.addmm_(h_TI, linear.weight_OI.t())
    return linear(h_TI).add_(x_TO)


def rotate_and_write(
    qk_THD: Tensor, v_TKD: Tensor, rotation: Rotation, slots_T: Tensor, cache: LayerCache
) -> Tensor:
    """Rotate queries and keys, and write keys and values to these slots of the cache; returns the
    queries ``[T, N, D]``.

    ``qk_THD``: query heads, then key heads.
    """
    num_tokens, _, head_dim = qk_THD.shape
    num_kv_heads = v_TKD.shape[1]
    num_heads = qk_THD.shape[1] - num_kv_heads
    assert qk_THD.stride()[1:] == v_TKD.stride()[1:] == (head_dim, 1), "heads are not contiguous"
    assert rotation.cos_T1D.is_contiguous(), "the cosines are not contiguous"
    assert rotation.sin_T1D.is_contiguous(), "the sines are not contiguous"
    assert cache.keys_SKD.shape[1:] == v_TKD.shape[1:], "other heads than the cache's"
    assert cache.keys_SKD.dtype == qk_THD.dtype, "another dtype than the cache's"
    q_TND = qk_THD.new_empty(num_tokens, num_heads, head_dim)
    load_kernels("layers").rotate_write_kernel[(num_tokens, num_heads + 2 * num_kv_heads)](
        qk_THD,
        v_TKD,
        rotation.cos_T1D,
        rotation.sin_T1D,
        slots_T,
        q_TND,
        cache.keys_SKD,
        cache.values_SKD,
        qk_THD.stride(0),
        v_TKD.stride(0),
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        ROTARY_DIM=rotation.cos_T1D.shape[-1],
        BLOCK_D=1 << (head_dim - 1).bit_length(),
        num_warps=1,
    )
    return q_TND


def gated(activation: Activation, gate_up_TI: Tensor) -> Tensor:
    """``activate`` of the two halves of ``[T, 2 * I]``, gate first."""
    assert gate_up_TI.is_contiguous(), "gate and up are not contiguous"
    num_tokens, width = len(gate_up_TI), gate_up_TI.shape[1] // 2
    out_TI = gate_up_TI.new_empty(num_tokens, width)
    load_kernels("layers").gate_kernel[(num_tokens, -(-width // _GATE_BLOCK))](
        gate_up_TI, out_TI, WIDTH=width, ACTIVATION=activation, BLOCK=_GATE_BLOCK
    )
    return out_TI
