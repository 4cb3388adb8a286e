"""The attention layer: projections, rotation, cache write; the backend computes attention.

Knows its own index and layer group, but no rows, pages or masks: those are in the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from quire.engine.attention.backend import AttentionAttributes, AttentionPlan
from quire.engine.kv_cache.torch_pool import LayerCache
from quire.engine.layers.linear import Linear
from quire.engine.layers.norm import NormConfig, QKNorm, QKNormKind
from quire.engine.layers.parameters import Arrange, Parameters
from quire.engine.layers.rotary import Rotation, halves_of_pairs, rotate


@dataclass(frozen=True, slots=True)
class GroupStep:
    """The step of one layer group: the slots to write, and the attention plan."""

    slots_T: Tensor
    plan: AttentionPlan


@dataclass(frozen=True, slots=True)
class ModelStep:
    """One step's tokens, as input of the layers.

    ``rotations`` are those of the model's ropes, in order. ``caches`` is indexed by layer,
    ``groups`` by layer group. ``on_layer`` is called after each layer with the number run so far.
    """

    rotations: list[Rotation]
    caches: list[LayerCache]
    groups: list[GroupStep]
    on_layer: Callable[[int], None] | None = None


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """The parameters that the attention of all layers of a model shares.

    ``head_dim`` need not be ``hidden_size / num_heads``. ``scale``, ``softcap`` and ``sinks``: see
    ``AttentionAttributes``. ``qk_norm``: see ``QKNorm``. ``fused``: the checkpoint stores queries,
    keys and values as one tensor ``qkv_proj`` (Phi-3). ``rotated_pairs``: so many planes of the
    checkpoint's heads are pairs of neighbouring elements (GLM); they are reordered when they are
    loaded, into the layout of ``quire.engine.layers.rotary``. 0: it has that layout.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None = None
    sinks: bool = False
    qk_norm: QKNormKind | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    fused: bool = False
    rotated_pairs: int = 0


class Attention:
    """Grouped-query attention over paged K and V.

    ``qkv.weight_OI`` is ``[(N + 2 * K) * D, H]``: query heads, then key heads, then value heads (N
    heads, K KV heads of size D). ``output.weight_OI`` is ``[H, N * D]``. ``qk_norm`` is None or
    applied before the rotation. ``rope``: index of the layer's rotation.
    """

    def __init__(
        self,
        parameters: Parameters,
        prefix: str,
        hidden_size: int,
        config: AttentionConfig,
        norm: NormConfig,
        *,
        layer: int,
        window: int | None,
        rope: int,
        group: int = 0,
    ) -> None:
        self.layer, self.rope, self.group = layer, rope, group
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.head_dim
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = (
            {f"{prefix}.qkv_proj": q_size + 2 * kv_size}
            if config.fused
            else {
                f"{prefix}.q_proj": q_size,
                f"{prefix}.k_proj": kv_size,
                f"{prefix}.v_proj": kv_size,
            }
        )
        self.qkv = Linear(
            parameters,
            parts,
            hidden_size,
            bias=config.qkv_bias,
            arranged=_arranged(prefix, config),
        )
        heads = (config.num_heads, config.num_kv_heads, config.head_dim)
        self.qk_norm = (
            QKNorm(parameters, prefix, config.qk_norm, heads, norm) if config.qk_norm else None
        )
        self.output = Linear(
            parameters, {f"{prefix}.o_proj": hidden_size}, q_size, bias=config.output_bias
        )
        sinks_N = parameters.tensor(f"{prefix}.sinks", config.num_heads) if config.sinks else None
        self.attributes = AttentionAttributes(config.scale, window, config.softcap, sinks_N)

    def __call__(self, x_TH: Tensor, step: ModelStep) -> Tensor:
        return self.output(self.heads(x_TH, step))

    def heads(self, x_TH: Tensor, step: ModelStep) -> Tensor:
        """The input of the output projection, ``[T, N * D]``."""
        num_rotated = self.num_heads + self.num_kv_heads
        qkv_THD = self.qkv(x_TH).view(x_TH.shape[0], -1, self.head_dim)
        qk_THD = qkv_THD[:, :num_rotated]
        if self.qk_norm is not None:
            qk_THD = self.qk_norm(qk_THD)
        rotation = step.rotations[self.rope]
        qk_THD = rotate(qk_THD, rotation)
        group, cache = step.groups[self.group], step.caches[self.layer]
        cache.write(group.slots_T, qk_THD[:, self.num_heads :], qkv_THD[:, num_rotated:])
        q_TND = qk_THD[:, : self.num_heads]
        if rotation.query_scale_T11 is not None:
            q_TND = q_TND * rotation.query_scale_T11
        return group.plan.attend(q_TND, cache, self.attributes)


def _arranged(prefix: str, config: AttentionConfig) -> dict[str, Arrange]:
    """The projections whose rows are reordered, so that planes have the layout of ``rotary``."""
    if not config.rotated_pairs:
        return {}
    assert not config.fused, "no checkpoint with one tensor of rotated pairs is known"
    assert config.qk_norm is None, "the weights of normed heads would need another order, too"
    order = partial(halves_of_pairs, head_dim=config.head_dim, rotary_dim=2 * config.rotated_pairs)
    return {f"{prefix}.q_proj": order, f"{prefix}.k_proj": order}
