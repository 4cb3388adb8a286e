"""Checks a sampler: its processors' names and parameters, and its seed."""

from __future__ import annotations

from quire.core.decoding import Processor, SamplerSpec
from quire.core.errors import InvalidArgument
from quire.engine.sampling.declarations import check_params
from quire.engine.sampling.registry import Registry, installed

MAX_PROCESSORS = 32
"""Processors of one sampler; each adds work to every step of the batch."""


MAX_ENTRIES = 1 << 17
"""Entries of all lists of one sampler, words counted with their tokens."""


def check_sampler(sampler: SamplerSpec, vocab_size: int, registry: Registry | None = None) -> None:
    """Raise ``InvalidArgument`` for an unknown processor, a bad parameter or a missing seed."""
    registry = installed() if registry is None else registry
    if len(sampler.processors) > MAX_PROCESSORS:
        raise InvalidArgument(
            f"the sampler has {len(sampler.processors)} processors; at most {MAX_PROCESSORS}"
        )
    num_entries = sum(map(_num_entries, sampler.processors))
    if num_entries > MAX_ENTRIES:
        raise InvalidArgument(
            f"the lists of the sampler have {num_entries} entries together; at most {MAX_ENTRIES}"
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


def _num_entries(processor: Processor) -> int:
    """The entries of a processor's lists; of one that is too long by itself, no more are looked
    at."""
    num_entries = 0
    for value in processor.params.values():
        if isinstance(value, list):
            num_entries += len(value)
            if len(value) <= MAX_ENTRIES:
                num_entries += sum([len(one) - 1 for one in value if isinstance(one, list) and one])
    return num_entries
