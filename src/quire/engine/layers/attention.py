"""The attention layer: projections, rotation, cache write; the backend does the rest.

Knows its own index and layer group, nothing of rows, pages or masks: those are in the step.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from quire.engine.attention.backend import AttentionPlan
from quire.engine.kv_cache.torch_pool import LayerCache
from quire.engine.layers.linear import Linear
from quire.engine.layers.norm import HeadNorm
from quire.engine.layers.parameters import Parameters
from quire.engine.layers.rotary import rotate


@dataclass(frozen=True, slots=True)
class GroupStep:
    """What the layers of one layer group need for a step: where to write, how to attend."""

    slots_T: Tensor
    plan: AttentionPlan


@dataclass(frozen=True, slots=True)
class ModelStep:
    """One step's tokens as the layers see them. Legend: T tokens, D head size.

    ``caches`` is indexed by layer, ``groups`` by layer group.
    """

    cos_T1D: Tensor
    sin_T1D: Tensor
    caches: list[LayerCache]
    groups: list[GroupStep]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int


class Attention:
    """Grouped-query attention over paged K and V, optionally with biases and per-head norms."""

    def __init__(
        self,
        parameters: Parameters,
        prefix: str,
        hidden_size: int,
        shape: AttentionShape,
        layer: int,
        *,
        group: int = 0,
        qkv_bias: bool = False,
        output_bias: bool = False,
        head_norm_eps: float | None = None,
    ) -> None:
        self.layer = layer
        self.group = group
        self.num_heads, self.num_kv_heads = shape.num_heads, shape.num_kv_heads
        self.head_dim = shape.head_dim
        q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.qkv = Linear(
            parameters,
            {f"{prefix}.q_proj": q_size, f"{prefix}.k_proj": kv_size, f"{prefix}.v_proj": kv_size},
            hidden_size,
            bias=qkv_bias,
        )
        self.head_norm = (
            None
            if head_norm_eps is None
            else HeadNorm(
                parameters,
                prefix,
                shape.head_dim,
                shape.num_heads,
                head_norm_eps,
            )
        )
        self.output = Linear(
            parameters, {f"{prefix}.o_proj": hidden_size}, q_size, bias=output_bias
        )

    def __call__(self, x_TH: Tensor, step: ModelStep) -> Tensor:
        num_rotated = self.num_heads + self.num_kv_heads
        qkv_THD = self.qkv(x_TH).view(x_TH.shape[0], -1, self.head_dim)
        qk_THD = qkv_THD[:, :num_rotated]
        if self.head_norm is not None:
            qk_THD = self.head_norm(qk_THD)
        qk_THD = rotate(qk_THD, step.cos_T1D, step.sin_T1D)
        group, cache = step.groups[self.group], step.caches[self.layer]
        cache.write(group.slots_T, qk_THD[:, self.num_heads :], qkv_THD[:, num_rotated:])
        return self.output(group.plan.attend(qk_THD[:, : self.num_heads], cache))
