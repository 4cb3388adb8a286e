"""Puts the device's forms of projections and experts into a built decoder, in place.

Owns which layer takes which form; knows no arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.engine.cuda.grouped_experts import GroupedExperts
from quire.engine.cuda.linears import FixedTileLinear, Float8Linear
from quire.engine.cuda.products import fixed_linear
from quire.engine.layers.experts import Experts
from quire.engine.layers.linear import Linear
from quire.engine.models.decoder import Decoder


@dataclass(frozen=True, slots=True)
class Forms:
    """``float8``: projections of attention, MLP and experts in FP8; embeddings, norms, routers and
    the output projection stay as they are. ``batch_invariant``: every product has a fixed tile."""

    float8: bool = False
    batch_invariant: bool = False


def adapt(model: Decoder, forms: Forms) -> None:
    """Replace every layer's projections. Weights are handed over, not copied."""
    for layer in model.layers:
        attention = layer.attention
        attention.qkv = _linear(attention.qkv, forms)
        attention.output = _linear(attention.output, forms)
        if isinstance(layer.mlp, Experts):
            if forms.batch_invariant:
                layer.mlp.router = FixedTileLinear(layer.mlp.router)
            layer.mlp = GroupedExperts(
                layer.mlp, float8=forms.float8, batch_invariant=forms.batch_invariant
            )
        else:
            layer.mlp.gate_up = _linear(layer.mlp.gate_up, forms)
            layer.mlp.down = _linear(layer.mlp.down, forms)
    if forms.batch_invariant:
        model.project = fixed_linear


def _linear(linear: Linear, forms: Forms) -> Linear:
    if forms.float8:
        return Float8Linear(linear, batch_invariant=forms.batch_invariant)
    return FixedTileLinear(linear) if forms.batch_invariant else linear


__all__ = ["Forms", "adapt"]
