"""The parameters that a processor accepts, as data; checked when a sampler arrives.

Owns the types of parameters, their checks and their descriptions in messages. Knows no processor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.core.decoding import Params
from quire.core.errors import InvalidArgument

MAX_LIST = 1 << 16
"""Entries of one list; longer lists would slow every step of the batch."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number from ``low`` to ``high``; ``above`` excludes ``low`` itself."""

    low: float
    high: float
    above: bool = False
    integer: bool = False
    default: float | int | None = None

    def contains(self, value: Any) -> bool:
        kinds = int if self.integer else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            return False
        if isinstance(value, float) and not math.isfinite(value):  # fails for a very large integer
            return False
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def problem(self, value: Any, vocab_size: int) -> str | None:
        return None if self.contains(value) else f"is {value!r}, it must be {self}"

    def __str__(self) -> str:
        kind = "an integer" if self.integer else "a number"
        return f"{kind} {'above' if self.above else 'from'} {self.low:g} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class Numbers:
    """A list of numbers, as long as the list parameter ``along``."""

    each: Number
    along: str
    default: None = None

    def problem(self, value: Any, vocab_size: int) -> str | None:
        if not isinstance(value, list):
            return f"is {value!r}, it must be {self}"
        bad = [one for one in value if not self.each.contains(one)]
        return f"has {bad[0]!r}; it takes {self.each}" if bad else None

    def __str__(self) -> str:
        return f"a list as long as {self.along}, each {self.each}"


@dataclass(frozen=True, slots=True)
class Tokens:
    """A list of token ids of the model's vocabulary."""

    min_length: int = 0
    default: tuple[int, ...] | None = None

    def problem(self, value: Any, vocab_size: int) -> str | None:
        if not isinstance(value, list) or not self.min_length <= len(value) <= MAX_LIST:
            return f"is {str(value)[:60]}, it must be {self}"
        bad = [token for token in value if not _is_token(token, vocab_size)]
        return f"has {bad[0]!r}, which is not in the vocabulary of {vocab_size}" if bad else None

    def __str__(self) -> str:
        return f"a list of {self.min_length} to {MAX_LIST} token ids"


@dataclass(frozen=True, slots=True)
class TokenSequences:
    """A list of token ids and of lists of token ids."""

    max_word: int = 64
    default: None = None

    def problem(self, value: Any, vocab_size: int) -> str | None:
        if not isinstance(value, list) or len(value) > MAX_LIST:
            return f"is {str(value)[:60]}, it must be {self}"
        for one in value:
            word = one if isinstance(one, list) else [one]
            if not 1 <= len(word) <= self.max_word:
                return f"has a word of {len(word)} tokens; it must be {self}"
            bad = [token for token in word if not _is_token(token, vocab_size)]
            if bad:
                return f"has {bad[0]!r}, which is not in the vocabulary of {vocab_size}"
        return None

    def __str__(self) -> str:
        return f"a list of token ids and of lists of 1 to {self.max_word} of them"


@dataclass(frozen=True, slots=True)
class Text:
    """A string of at most ``max_length`` characters."""

    max_length: int = 1024
    default: str | None = None

    def problem(self, value: Any, vocab_size: int) -> str | None:
        fits = isinstance(value, str) and len(value) <= self.max_length
        return None if fits else f"is {str(value)[:60]!r}, it must be {self}"

    def __str__(self) -> str:
        return f"a string of at most {self.max_length} characters"


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    default: bool | None = None

    def problem(self, value: Any, vocab_size: int) -> str | None:
        return None if isinstance(value, bool) else f"is {value!r}, it must be {self}"

    def __str__(self) -> str:
        return "true or false"


Parameter = Number | Numbers | Tokens | TokenSequences | Text | Flag
"""A declared parameter. ``default`` None: it must be given."""


def check_params(
    name: str, declared: Mapping[str, Parameter], params: Params, vocab_size: int
) -> None:
    """Raise ``InvalidArgument`` unless ``params`` are those that processor ``name`` declares."""
    required = {key for key, one in declared.items() if one.default is None}
    if not required <= params.keys() <= declared.keys():
        optional = sorted(declared.keys() - required)
        raise InvalidArgument(
            f"processor {name!r} takes the parameters {sorted(required)}"
            + (f" and may have {optional}" if optional else "")
            + f", got {sorted(params)}"
        )
    for key, value in params.items():
        one = declared[key]
        problem = one.problem(value, vocab_size)
        if problem is None and isinstance(one, Numbers):
            other = params.get(one.along)
            if not isinstance(other, list) or len(other) != len(value):  # type: ignore[arg-type]
                problem = f"and {one.along} must be lists of one length"
        if problem is not None:
            raise InvalidArgument(f"{name}: {key} {problem}")


def with_defaults(declared: Mapping[str, Parameter], params: Params) -> Params:
    """``params`` completed with the defaults of declared parameters."""
    defaults: Params = {}
    for key, one in declared.items():
        if key not in params and one.default is not None:
            default = one.default
            defaults[key] = list(default) if isinstance(default, tuple) else default
    return {**defaults, **params} if defaults else params


def _is_token(value: Any, vocab_size: int) -> bool:
    return type(value) is int and 0 <= value < vocab_size
