"""Reads a ``config_groups`` section of compressed-tensors: its weights and activations.

Most of it is also implied by the shapes of the tensors; the rest is checked here.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.errors import ModelFormatError, UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader

_MAX_BITS = 64
_LEAST_ACTIVATION_BITS = 8
"""Models trained for fewer bits expect coarse activations; 8-bit ones may be computed in full
precision."""


@dataclass(frozen=True, slots=True)
class WeightGroups:
    """``block``: rows and columns that share a scale; None: no blocks. ``is_reordered``: whether
    groups are not consecutive inputs."""

    block: tuple[int, int] | None = None
    is_reordered: bool = False


def read_groups(config: ConfigReader, kind: str) -> WeightGroups:
    """The groups of a ``quantization_config`` whose weights are of ``kind`` (``int`` or ``float``).

    Raises:
        UnsupportedModel: weights of another kind, quantised outputs, activations of few bits.
        ModelFormatError: groups that contradict each other.
    """
    groups = config.section("config_groups")
    if groups is None:
        return WeightGroups()
    blocks, is_reordered = set(), False
    for name in groups.values:
        group = groups.section(name)
        weights = None if group is None else group.section("weights")
        if group is None or weights is None:
            continue
        _check_activations(group)
        _check_weights(weights, kind)
        blocks.add(_block(weights))
        order = weights.raw("actorder")
        is_reordered = is_reordered or order is True or order == "group"
    if len(blocks) > 1:
        raise ModelFormatError(
            f"{groups.where} has groups with different block_structure, {sorted(map(str, blocks))}:"
            " served is one for all"
        )
    return WeightGroups(next(iter(blocks), None), is_reordered)


def _check_weights(weights: ConfigReader, kind: str) -> None:
    given = weights.text("type", kind)
    bits = weights.integer("num_bits", _MAX_BITS, default=8)
    if given != kind or bits not in (4, 8) or weights.raw("dynamic"):
        raise UnsupportedModel(
            f"{weights.where}: weights of {bits} bits and type {given[:40]!r}; in this format "
            f"served are 4 and 8 bits of type {kind!r}, packed when the file was made"
        )


def _check_activations(group: ConfigReader) -> None:
    inputs = group.section("input_activations")
    if inputs is not None:
        bits = inputs.integer("num_bits", _MAX_BITS, default=_LEAST_ACTIVATION_BITS)
        if bits < _LEAST_ACTIVATION_BITS:
            raise UnsupportedModel(
                f"{inputs.where} asks for activations of {bits} bits; they stay in the engine's "
                f"number format here, which stands for {_LEAST_ACTIVATION_BITS} bits and more"
            )
    if group.raw("output_activations") is not None:
        raise UnsupportedModel(
            f"{group.where} asks for quantised outputs (output_activations), which is not served: "
            "use a checkpoint without them"
        )


def _block(weights: ConfigReader) -> tuple[int, int] | None:
    value = weights.raw("block_structure")
    if value is None:
        return None
    parts = value.split("x") if isinstance(value, str) else value
    if isinstance(parts, list) and len(parts) == 2 and all(str(one).isdigit() for one in parts):
        rows, columns = (int(one) for one in parts)
        if 1 <= rows <= 1 << 20 and 1 <= columns <= 1 << 20:
            return rows, columns
    raise ModelFormatError(
        f"{weights.where} has block_structure = {str(value)[:80]!r}; it must be two sizes, as "
        "[128, 128]"
    )
