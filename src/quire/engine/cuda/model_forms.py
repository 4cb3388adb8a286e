"""Replaces the projections, experts and layers of a built decoder by the device's forms, in place.

Owns which layer takes which form; knows no arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from quire.engine.cuda.fused_layers import FusedAttention, FusedLayer, FusedMLP
from quire.engine.cuda.grouped_experts import GroupedExperts
from quire.engine.cuda.linears import FixedTileLinear, Float8Linear
from quire.engine.cuda.products import fixed_linear
from quire.engine.layers.experts import Experts
from quire.engine.layers.linear import Linear
from quire.engine.models.decoder import Decoder


@dataclass(frozen=True, slots=True)
class Forms:
    """``float8``: projections of attention, MLP and experts in FP8; embeddings, norms, routers and
    the output projection are unchanged. ``batch_invariant``: every product has a fixed tile."""

    float8: bool = False
    batch_invariant: bool = False


def projections(model: Decoder) -> list[Linear]:
    """The projections of attention and dense MLPs, in the order of ``adapt``."""
    found: list[Linear] = []
    for layer in model.layers:
        found += (layer.attention.qkv, layer.attention.output)
        if not isinstance(layer.mlp, Experts):
            found += (layer.mlp.gate_up, layer.mlp.down)
    return found


def adapt(model: Decoder, forms: Forms, scales: Mapping[int, Tensor] | None = None) -> None:
    """Replace every layer and its projections. Weights are moved, not copied.

    ``scales``: FP8 scales ``[O]`` by index in ``projections``; missing ones are computed here.
    """
    known = scales or {}
    adapted = iter(
        [
            _linear(linear, forms, known.get(place))
            for place, linear in enumerate(projections(model))
        ]
    )
    for number, layer in enumerate(model.layers):
        layer.attention.qkv, layer.attention.output = next(adapted), next(adapted)
        layer.attention = FusedAttention(layer.attention)
        if isinstance(layer.mlp, Experts):
            if forms.batch_invariant:
                layer.mlp.router = FixedTileLinear(layer.mlp.router)
            layer.mlp = GroupedExperts(
                layer.mlp, float8=forms.float8, batch_invariant=forms.batch_invariant
            )
        else:
            layer.mlp.gate_up, layer.mlp.down = next(adapted), next(adapted)
            layer.mlp = FusedMLP(layer.mlp)
        model.layers[number] = FusedLayer(layer)
    if forms.batch_invariant:
        model.project = fixed_linear


def _linear(linear: Linear, forms: Forms, scale_O: Tensor | None) -> Linear:
    if forms.float8:
        return Float8Linear(linear, scale_O, batch_invariant=forms.batch_invariant)
    return FixedTileLinear(linear) if forms.batch_invariant else linear
