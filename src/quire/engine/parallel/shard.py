"""The part of a model that one rank holds.

Attention is split by heads, MLPs and every expert by their intermediate size, embedding and output
by the vocabulary; norms and routers are replicated. A projection back to the hidden size gives a
partial sum, to which only rank 0 adds the bias.

Owns the rules; does not know processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.core.errors import ConfigError
from quire.engine.layers.parameters import Destination
from quire.engine.models.decoder_config import DecoderConfig

Shape = tuple[int, ...]
Span = tuple[int, int]

_PARTIAL_SUMS = ("o_proj", "down_proj", "output_linear")
"""Modules whose outputs are summed over the ranks."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank ``rank`` of ``size``."""

    rank: int = 0
    size: int = 1

    def span(self, count: int) -> Span:
        """This rank's equal part of ``count``, which must be a multiple of ``size``."""
        width = count // self.size
        return self.rank * width, (self.rank + 1) * width

    def vocabulary(self, vocab_size: int) -> Span:
        """This rank's tokens: equal parts, except that the last may be shorter."""
        width = -(-vocab_size // self.size)
        return min(self.rank * width, vocab_size), min((self.rank + 1) * width, vocab_size)


WHOLE = Shard()


def check_split(config: DecoderConfig, size: int) -> None:
    """Raise ``ConfigError`` unless ``size`` ranks can share the model."""
    attention, mlp, experts = config.attention, config.mlp, config.experts
    heads, kv_heads = attention.num_heads, attention.num_kv_heads
    counts = {"attention heads": heads}
    if mlp is not None:
        counts["columns of its MLP"] = mlp.intermediate_size
    if experts is not None:
        counts["columns of each expert"] = experts.intermediate_size
    uneven = [f"{count} {what}" for what, count in counts.items() if count % size]
    if kv_heads % size and size % kv_heads:
        uneven.append(f"{kv_heads} KV heads")
    if uneven:
        fitting = [n for n in range(2, 65) if _fits(n, list(counts.values()), kv_heads)]
        raise ConfigError(
            f"tensor_parallel is {size}, but the model has {' and '.join(uneven)}, which {size} "
            f"ranks cannot share: choose {', '.join(map(str, [1, *fitting]))}"
        )


def _fits(size: int, counts: list[int], kv_heads: int) -> bool:
    even = all(count % size == 0 for count in counts)
    return even and (kv_heads % size == 0 or size % kv_heads == 0)


def local_config(config: DecoderConfig, shard: Shard) -> DecoderConfig:
    """The decoder that one rank builds; those of all ranks have the same shape.

    Raises:
        ConfigError: the model cannot be divided among this many ranks.
    """
    size = shard.size
    if size == 1:
        return config
    check_split(config, size)
    attention, mlp, experts = config.attention, config.mlp, config.experts
    return replace(
        config,
        vocab_size=-(-config.vocab_size // size),
        attention=replace(
            attention,
            num_heads=attention.num_heads // size,
            num_kv_heads=max(1, attention.num_kv_heads // size),
        ),
        mlp=mlp and replace(mlp, intermediate_size=mlp.intermediate_size // size),
        experts=experts and replace(experts, intermediate_size=experts.intermediate_size // size),
    )


def local_destinations(
    whole: Mapping[str, Destination],
    local: Mapping[str, Destination],
    config: DecoderConfig,
    shard: Shard,
) -> dict[str, Destination]:
    """The destinations ``local``, each with the part that it takes of the checkpoint's tensor.
    ``whole``: the destinations of the undivided model, whose configuration ``config`` is."""
    if shard.size == 1:
        return dict(local)
    return {
        name: replace(
            destination,
            shape=whole[name].shape,
            pick=picker(name, whole[name].shape, destination.shape, config, shard),
        )
        for name, destination in local.items()
    }


def picker(
    name: str, whole: Shape, local: Shape, config: DecoderConfig, shard: Shard
) -> Callable[[Tensor], Tensor] | None:
    """Selects this rank's part of the tensor ``name``: from shape ``whole`` to shape ``local``."""
    module = _module_of(name)
    if whole == local:
        is_bias = name.endswith("bias")
        adds_twice = is_bias and module in _PARTIAL_SUMS and shard.rank > 0
        return torch.zeros_like if adds_twice else None
    (axis,) = [axis for axis, pair in enumerate(zip(whole, local, strict=True)) if len({*pair}) > 1]
    spans = _spans(module, whole[axis], local[axis], config, shard)

    def pick(stored: Tensor) -> Tensor:
        parts = [stored.narrow(axis, start, stop - start) for start, stop in spans]
        part = torch.cat(parts, axis) if len(parts) > 1 else parts[0]
        missing = local[axis] - part.shape[axis]
        if missing:  # rows after the end of the vocabulary
            part = F.pad(part, [0, 0] * (part.dim() - 1 - axis) + [0, missing])
        return part

    return pick


def _module_of(name: str) -> str:
    """The module's name: ``down_proj`` of ``a.down_proj.weight``, ``a.down_proj.bias``,
    ``a.down_proj_bias`` and ``a.down_proj``."""
    module = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
    return module.removesuffix("_bias")


def _spans(module: str, whole: int, local: int, config: DecoderConfig, shard: Shard) -> list[Span]:
    """The ranges of an axis of ``whole`` elements that make up this rank's ``local``."""
    attention, dim = config.attention, config.attention.head_dim
    queries, keys = attention.num_heads * dim, attention.num_kv_heads * dim
    if module in ("k_proj", "v_proj", "k_norm"):
        return [_kv_span(config, shard)]
    if module == "qkv_proj":
        start, stop = _kv_span(config, shard)
        return [
            shard.span(queries),
            (queries + start, queries + stop),
            (queries + keys + start, queries + keys + stop),
        ]
    if module in _gates_with_ups(config):
        start, stop = shard.span(whole // 2)
        return [(start, stop), (whole // 2 + start, whole // 2 + stop)]
    if module in ("embed_tokens", "lm_head"):
        return [shard.vocabulary(whole)]
    assert local * shard.size == whole, f"{module}: {whole} over {shard.size} ranks are not {local}"
    return [shard.span(whole)]


def _gates_with_ups(config: DecoderConfig) -> tuple[str, ...]:
    """The modules that hold all of gate before all of up. (gpt-oss alternates the two.)"""
    fused = config.mlp is not None and config.mlp.storage == "fused"
    return ("input_linear", "gate_up_proj") if fused else ("input_linear",)


def _kv_span(config: DecoderConfig, shard: Shard) -> Span:
    """Rows of this rank's KV heads; several ranks hold the same head if there are fewer heads than
    ranks."""
    kv_heads, dim = config.attention.num_kv_heads, config.attention.head_dim
    width = max(1, kv_heads // shard.size)
    first = shard.rank * kv_heads // shard.size
    return first * dim, (first + width) * dim
