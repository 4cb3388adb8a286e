"""Decides which encoders of a node share processes: late interaction over a model that also embeds
reads the hidden states that embedding has computed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quire.core.config import EncoderConfig
from quire.core.ids import ModelId


@dataclass(frozen=True, slots=True)
class SharedProcesses:
    """The processes of one configuration. ``names``: the encoders that they serve, and whether each
    is late interaction."""

    config: EncoderConfig
    names: Mapping[ModelId, bool]


def shared_processes(configs: Sequence[EncoderConfig]) -> list[SharedProcesses]:
    """The processes that serve ``configs``, in their order. Late interaction joins the first model
    that differs in its name alone; with another number of instances, or another source, it has
    processes of its own."""
    names: dict[ModelId, dict[ModelId, bool]] = {
        config.name: {config.name: config.late_interaction} for config in configs
    }
    for late in [config for config in configs if config.late_interaction]:
        own = dataclasses.replace(late, late_interaction=False)
        for config in configs:
            if dataclasses.replace(config, name=late.name) == own:
                del names[late.name]
                names[config.name][late.name] = True
                break
    return [
        SharedProcesses(
            dataclasses.replace(config, also_scores=len(names[config.name]) > 1),
            names[config.name],
        )
        for config in configs
        if config.name in names
    ]
