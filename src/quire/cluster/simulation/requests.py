"""The requests to a virtual cluster: their lengths, common prefixes and arrival times.

Owns the random numbers. The same seed gives the same requests, at any rate and for any strategy.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from random import Random

from quire.core.errors import ConfigError
from quire.simulation.arrivals import Arrivals
from quire.simulation.player import VOCABULARY
from quire.simulation.workloads.distributions import LogNormal
from quire.simulation.workloads.plan import CallPlan, ProgramPlan

SHAPES = ("normal", "lognormal")
_LARGEST = 16
"""The largest log-normal length, and the largest spread of a normal one, in multiples of the
mean."""
_MOST_TOKENS = 1 << 20
"""The most tokens of a mean length and of a prefix: every text is generated."""
_MOST_REQUESTS = 1 << 24


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of prompts or answers, in tokens. ``spread``: the standard deviation of a ``normal``
    length, or of the logarithm of a ``lognormal`` one.

    Raises:
        ConfigError: the figures do not describe lengths.
    """

    mean: int
    spread: float = 0.0
    shape: str = "normal"

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ConfigError(f"lengths are {self.shape!r}: choose from {', '.join(SHAPES)}")
        if self.mean < 1:
            raise ConfigError(f"a mean length is {self.mean}: choose at least 1 token")
        if self.mean > _MOST_TOKENS:
            raise ConfigError(f"a mean length is {self.mean}: choose at most {_MOST_TOKENS} tokens")
        most = _LARGEST * self.mean
        if not 0 <= self.spread <= most:
            raise ConfigError(f"a spread of lengths is {self.spread}: choose 0 to {most}")
        if self.shape == "lognormal" and (self.mean < 2 or not self.spread):
            raise ConfigError(
                f"log-normal lengths of {self.mean} tokens with spread {self.spread}: choose a "
                "mean of at least 2 and a spread above 0"
            )

    def drawer(self) -> Callable[[Random], int]:
        if self.shape == "lognormal":
            return LogNormal(self.mean, self.spread, most=_LARGEST * self.mean).draw
        return lambda random: max(1, round(random.gauss(self.mean, self.spread)))


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """``prompt``: the tokens of a prefix that other requests share, then the request's own."""

    at_s: float
    prompt: list[int]
    num_output: int
    prefix: int | None


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """``num_requests`` that arrive independently of one another, ``rate`` a second on average.
    Each begins with one of ``num_prefixes`` texts of ``prefix_tokens``; text i is drawn in
    proportion to 1 / i ** ``zipf``. The ``Lengths`` of prompts do not count this prefix.

    Raises:
        ConfigError: the figures do not describe a load.
    """

    num_requests: int
    rate: float
    prompts: Lengths
    answers: Lengths
    num_prefixes: int = 0
    prefix_tokens: int = 0
    zipf: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.num_requests <= _MOST_REQUESTS:
            raise ConfigError(f"num_requests is {self.num_requests}: choose 1 to {_MOST_REQUESTS}")
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}: choose 0 or more")
        if not (isfinite(self.rate) and self.rate > 0):
            raise ConfigError(f"the rate is {self.rate} requests/s: choose a number above 0")
        if (self.num_prefixes > 0) != (self.prefix_tokens > 0) or self.num_prefixes < 0:
            raise ConfigError(
                f"{self.num_prefixes} prefixes of {self.prefix_tokens} tokens: give both, above 0, "
                "or neither"
            )
        if max(self.num_prefixes, self.prefix_tokens) > _MOST_TOKENS:
            raise ConfigError(
                f"{self.num_prefixes} prefixes of {self.prefix_tokens} tokens: choose at most "
                f"{_MOST_TOKENS} of each"
            )
        if not (isfinite(self.zipf) and self.zipf >= 0):
            raise ConfigError(f"the exponent of prefixes is {self.zipf}: choose 0 or more")

    def drawn(self) -> list[RequestPlan]:
        times_s = Arrivals(rate=self.rate).times_s(self.num_requests, self.seed)
        prompt_of, answer_of = self.prompts.drawer(), self.answers.drawer()
        weights = [1 / number**self.zipf for number in range(1, self.num_prefixes + 1)]
        bounds = list(accumulate(weights))
        plans, text = [], self.num_prefixes * self.prefix_tokens
        for number, at_s in enumerate(times_s):
            random = Random(f"requests/{self.seed}/{number}")
            num_own, num_output = prompt_of(random), answer_of(random)
            prompt, prefix = _text(text, num_own), None
            if bounds:
                prefix = min(bisect(bounds, random.random() * bounds[-1]), len(bounds) - 1)
                prompt = _text(prefix * self.prefix_tokens, self.prefix_tokens) + prompt
            plans.append(RequestPlan(at_s, prompt, num_output, prefix))
            text += num_own
        return plans

    def programs(self) -> list[ProgramPlan]:
        """Return the requests as programs, to estimate the engines' capacity. Each program computes
        its prefix."""
        return [
            ProgramPlan("request", (CallPlan(len(plan.prompt), plan.num_output),))
            for plan in self.drawn()
        ]


def _text(start: int, num_tokens: int) -> list[int]:
    return [one % VOCABULARY for one in range(start, start + num_tokens)]
