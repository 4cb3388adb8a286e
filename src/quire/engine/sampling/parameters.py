"""Checks a sampler: its processors' names and parameters, and its seed."""

from __future__ import annotations

from quire.core.decoding import SamplerSpec
from quire.core.errors import InvalidArgument
from quire.engine.sampling.declarations import check_params
from quire.engine.sampling.registry import Registry, installed

MAX_PROCESSORS = 32
"""Processors of one sampler; each adds work to every step of the batch."""


def check_sampler(sampler: SamplerSpec, vocab_size: int, registry: Registry | None = None) -> None:
    """Raise ``InvalidArgument`` for an unknown processor, a bad parameter or a missing seed."""
    registry = installed() if registry is None else registry
    if len(sampler.processors) > MAX_PROCESSORS:
        raise InvalidArgument(
            f"the sampler has {len(sampler.processors)} processors; at most {MAX_PROCESSORS}"
        )
    matching = set()
    for processor in sampler.processors:
        kind = registry.find(processor.name)
        check_params(processor.name, kind.parameters, processor.params, vocab_size)
        if kind.needs_matches:
            if processor.name in matching:
                raise InvalidArgument(
                    f"processor {processor.name!r} occurs in it twice: merge them"
                )
            matching.add(processor.name)
    if not sampler.greedy and sampler.seed is None:
        raise InvalidArgument(
            "a sampler that draws came without a seed: control picks one when the caller does not"
        )
