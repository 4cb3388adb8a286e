"""Which processors there are, what parameters they take, and whether a sampler's are valid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from quire.core.decoding import Params, Processor, SamplerSpec
from quire.core.errors import InvalidArgument
from quire.engine.sampling.processors import (
    BoundProcessor,
    FrequencyPenalty,
    GroupContext,
    MinP,
    PresencePenalty,
    RepetitionPenalty,
    Temperature,
    TokenBias,
    TopK,
    TopP,
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """A scalar parameter's range; ``above`` excludes ``low`` itself."""

    low: float
    high: float
    above: bool = False
    integer: bool = False

    def contain(self, value: Any) -> bool:
        kinds = int if self.integer else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
            return False
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def __str__(self) -> str:
        kind = "an integer" if self.integer else "a number"
        return f"{kind} {'above' if self.above else 'from'} {self.low:g} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class ProcessorKind:
    """How one named processor is bound and what its parameters may be.

    ``token_lists``: parameters that are lists of equal length, the first one token ids.
    """

    bind: Callable[[Sequence[Params], GroupContext], BoundProcessor]
    scalars: dict[str, Bounds]
    token_lists: tuple[str, ...] = ()
    counts_tokens: bool = False


_PENALTY = {"penalty": Bounds(-1e6, 1e6)}
_SHARE = Bounds(0.0, 1.0, above=True)

PROCESSORS: dict[str, ProcessorKind] = {
    "logit_bias": ProcessorKind(TokenBias, {}, ("tokens", "biases")),
    "bad_words": ProcessorKind(TokenBias, {}, ("tokens",)),
    "repetition_penalty": ProcessorKind(
        RepetitionPenalty, {"penalty": Bounds(0.0, 1e6, above=True)}, counts_tokens=True
    ),
    "presence_penalty": ProcessorKind(PresencePenalty, _PENALTY, counts_tokens=True),
    "frequency_penalty": ProcessorKind(FrequencyPenalty, _PENALTY, counts_tokens=True),
    "temperature": ProcessorKind(Temperature, {"temperature": Bounds(0.0, 1e6, above=True)}),
    "top_k": ProcessorKind(TopK, {"k": Bounds(1, 1 << 31, integer=True)}),
    "top_p": ProcessorKind(TopP, {"p": _SHARE}),
    "min_p": ProcessorKind(MinP, {"p": _SHARE}),
}


def check_sampler(sampler: SamplerSpec, vocab_size: int) -> None:
    """Raises ``InvalidArgument`` for an unknown processor, a bad parameter or a missing seed."""
    for processor in sampler.processors:
        _check_processor(processor, vocab_size)
    if not sampler.greedy and sampler.seed is None:
        raise InvalidArgument(
            "a sampler that draws came without a seed: control picks one when the caller does not"
        )


def _check_processor(processor: Processor, vocab_size: int) -> None:
    kind = PROCESSORS.get(processor.name)
    if kind is None:
        raise InvalidArgument(
            f"no processor is named {processor.name!r}; there are {', '.join(sorted(PROCESSORS))}"
        )
    wanted = {*kind.scalars, *kind.token_lists}
    if processor.params.keys() != wanted:
        raise InvalidArgument(
            f"processor {processor.name!r} takes the parameters {sorted(wanted)}, "
            f"got {sorted(processor.params)}"
        )
    for name, bounds in kind.scalars.items():
        if not bounds.contain(processor.params[name]):
            raise InvalidArgument(
                f"{processor.name}: {name} is {processor.params[name]!r}, it must be {bounds}"
            )
    if kind.token_lists:
        _check_token_lists(processor, kind.token_lists, vocab_size)


def _check_token_lists(processor: Processor, names: tuple[str, ...], vocab_size: int) -> None:
    lists = [processor.params[name] for name in names]
    lengths = {len(one) if isinstance(one, list) else -1 for one in lists}
    if len(lengths) != 1 or -1 in lengths:
        raise InvalidArgument(
            f"{processor.name}: {' and '.join(names)} must be lists of one length"
        )
    tokens = Bounds(0, vocab_size - 1, integer=True)
    bad = [token for token in lists[0] if not tokens.contain(token)]  # type: ignore[union-attr]
    if bad:
        raise InvalidArgument(
            f"{processor.name}: token {bad[0]!r} is not in the vocabulary of {vocab_size}"
        )
    biases = Bounds(-1e9, 1e9)
    for name, values in zip(names[1:], lists[1:], strict=True):
        for value in values:  # type: ignore[union-attr]
            if not biases.contain(value):
                raise InvalidArgument(f"{processor.name}: {name} has {value!r}; it takes {biases}")
