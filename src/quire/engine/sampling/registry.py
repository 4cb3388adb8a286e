"""The available processors: the standard ones, and those of installed packages.

Owns discovery through the entry point group ``quire.processors``. A package that cannot be used is
recorded with the reason, and refused when a sampler asks for it; it never stops an engine.
Installed packages are trusted like the engine itself: they run in its process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol

from quire.core.decoding import Params
from quire.core.errors import InvalidArgument
from quire.engine.sampling import columns, token_rules
from quire.engine.sampling.candidates import Candidates
from quire.engine.sampling.declarations import Number, Numbers, Parameter, Tokens, TokenSequences
from quire.engine.sampling.dry import Dry
from quire.engine.sampling.group_memory import GroupMemory
from quire.engine.sampling.installed import adapt
from quire.engine.sampling.penalties import FrequencyPenalty, PresencePenalty, RepetitionPenalty
from quire.engine.sampling.protocol import (
    ENTRY_POINT_GROUP,
    PROTOCOL_VERSION,
    Rows,
    SamplingProcessor,
)
from quire.engine.sampling.token_rules import AllowedTokens, BadWords, LogitBias
from quire.engine.sampling.truncation import MinP, Temperature, TopK, TopP, Typical

_log = logging.getLogger(__name__)


class ProcessorStep(Protocol):
    """A processor bound to the rows of a group."""

    def __call__(self, candidates: Candidates, memory: GroupMemory) -> None: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """One named processor: its parameters, how it is bound, and what it reads.

    ``prepare`` makes of the parameters of a row, once, what ``bind`` takes for each row.
    ``source`` is the package of an installed processor, None for the standard ones.
    """

    parameters: Mapping[str, Parameter]
    bind: Callable[[Sequence[Any], Rows], ProcessorStep]
    prepare: Callable[[Params], Any] = field(default=lambda params: params)
    needs_counts: bool = False
    needs_history: Callable[[Params], bool] = field(default=lambda params: False)
    needs_matches: bool = False
    source: str | None = None


_PENALTY = {"penalty": Number(-1e6, 1e6)}
_SHARE = {"p": Number(0.0, 1.0, above=True)}
_MAX_K = 1 << 31

STANDARD: Mapping[str, Kind] = {
    "logit_bias": Kind(
        {"tokens": Tokens(), "biases": Numbers(Number(-1e9, 1e9), along="tokens")},
        LogitBias,
        token_rules.biases,
    ),
    "allowed_tokens": Kind({"tokens": Tokens(min_length=1)}, AllowedTokens, token_rules.tokens),
    "bad_words": Kind(
        {"tokens": TokenSequences()},
        BadWords,
        token_rules.words,
        needs_history=token_rules.needs_history,
    ),
    "repetition_penalty": Kind(
        {"penalty": Number(0.0, 1e6, above=True)},
        lambda params, rows: RepetitionPenalty(columns.numbers(params, "penalty"), rows),
        needs_counts=True,
    ),
    "frequency_penalty": Kind(
        _PENALTY,
        lambda params, rows: FrequencyPenalty(columns.numbers(params, "penalty"), rows),
        needs_counts=True,
    ),
    "presence_penalty": Kind(
        _PENALTY,
        lambda params, rows: PresencePenalty(columns.numbers(params, "penalty"), rows),
        needs_counts=True,
    ),
    "dry": Kind(
        {
            "multiplier": Number(0.0, 1e6),
            "base": Number(1.0, 1e3, default=1.75),
            "allowed_length": Number(1, 1 << 20, integer=True, default=2),
            "range": Number(0, 1 << 30, integer=True, default=0),
            "breakers": Tokens(default=()),
        },
        Dry,
        needs_history=lambda params: True,
        needs_matches=True,
    ),
    "top_k": Kind(
        {"k": Number(1, _MAX_K, integer=True)},
        lambda params, rows: TopK(columns.numbers(params, "k").astype("int64"), rows),
    ),
    "temperature": Kind(
        {"temperature": Number(0.0, 1e6, above=True)},
        lambda params, rows: Temperature(columns.numbers(params, "temperature"), rows),
    ),
    "min_p": Kind(_SHARE, lambda params, rows: MinP(columns.numbers(params, "p"), rows)),
    "top_p": Kind(_SHARE, lambda params, rows: TopP(columns.numbers(params, "p"), rows)),
    "typical": Kind(_SHARE, lambda params, rows: Typical(columns.numbers(params, "p"), rows)),
}


@dataclass(frozen=True, slots=True)
class Registry:
    """Processors by name, and the reasons why some installed ones cannot be used."""

    kinds: Mapping[str, Kind]
    refused: Mapping[str, str] = field(default_factory=dict)

    def find(self, name: str) -> Kind:
        """Return the processor ``name``. Raises ``InvalidArgument`` for one that cannot be used."""
        kind = self.kinds.get(name)
        if kind is not None:
            return kind
        if name in self.refused:
            raise InvalidArgument(f"processor {name!r} cannot be used: {self.refused[name]}")
        raise InvalidArgument(
            f"no processor is named {name!r}; there are {', '.join(sorted(self.kinds))}"
        )


@cache
def installed() -> Registry:
    """The standard processors and those of packages in this environment, looked up once."""
    return load(entry_points(group=ENTRY_POINT_GROUP))


def load(found: Iterable[EntryPoint]) -> Registry:
    """The standard processors and those of the entry points ``found``."""
    kinds, refused = dict(STANDARD), dict[str, str]()
    for point in found:
        package = point.dist.name if point.dist is not None else point.value
        try:
            made = point.load()
            processor = made() if isinstance(made, type) else made
            problem = problem_of(processor, point.name, kinds)
        except Exception as exc:  # third-party code; whatever it raises is the reason
            problem = f"loading {point.value} failed: {exc!r}"
        if problem is not None:
            refused[point.name] = f"{problem} (package {package})"
            _log.warning("processor %s is refused: %s", point.name, refused[point.name])
            continue
        needs = bool(processor.needs_history)
        kinds[point.name] = Kind(
            dict(processor.parameters),
            adapt(processor),
            needs_history=lambda params, needs=needs: needs,  # type: ignore[misc]
            source=package,
        )
    return Registry(kinds, {name: why for name, why in refused.items() if name not in kinds})


def problem_of(processor: object, name: str, taken: Mapping[str, Kind]) -> str | None:
    """Why a package's processor cannot be used under this name; None if it can."""
    version = getattr(processor, "protocol_version", None)
    if version != PROTOCOL_VERSION:
        return (
            f"it was written for version {version!r} of the processor protocol and this engine "
            f"speaks version {PROTOCOL_VERSION}: install a release of it for this version"
        )
    if not isinstance(processor, SamplingProcessor):
        return "it lacks one of name, protocol_version, parameters, needs_history and bind"
    if processor.name != name:
        return f"it is called {processor.name!r}, its entry point {name!r}: they must be the same"
    if name in taken:
        return f"the name {name!r} is taken by {taken[name].source or 'a standard processor'}"
    bad = [key for key, one in processor.parameters.items() if not isinstance(one, Parameter)]
    return f"its parameters {bad} are not declared as Number, Tokens, Text ..." if bad else None
