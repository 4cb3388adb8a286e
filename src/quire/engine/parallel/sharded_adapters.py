"""The part of an adapter that one rank holds, split like the projections that it modifies.

``up`` is split where a projection's outputs are; ``down`` is split where its inputs are, and the
ranks' partial sums then include the adapter's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from quire.engine.adapters.peft_directory import AdapterWeights, ModuleAdapter, ModuleShape
from quire.engine.models.decoder_config import DecoderConfig
from quire.engine.parallel.shard import Shard, picker


def local_adapter(
    adapter: AdapterWeights,
    whole: Mapping[str, ModuleShape],
    local: Mapping[str, ModuleShape],
    config: DecoderConfig,
    shard: Shard,
) -> AdapterWeights:
    """The part of ``adapter`` for this rank. ``whole`` and ``local``: the projections of the
    undivided model, and of this rank. ``config`` is that of the undivided model."""
    if shard.size == 1:
        return adapter

    def part(name: str, module: ModuleAdapter) -> ModuleAdapter:
        full, mine = whole[name], local[name]
        shapes = [(shape.num_outputs, shape.num_inputs) for shape in (full, mine)]
        pick = picker(f"{name}.weight", shapes[0], shapes[1], config, shard)
        if pick is None:
            return module
        if full.num_outputs != mine.num_outputs:
            return replace(module, up_OR=pick(module.up_OR))
        return replace(module, down_RI=pick(module.down_RI))

    parts = {name: part(name, module) for name, module in adapter.modules.items()}
    return replace(adapter, modules=parts)
