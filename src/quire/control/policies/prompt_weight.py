"""Estimates the cost of a token of a prompt in comparison with a generated one, from the programs
that ended.

The tokens of a prompt are computed together; a generated token takes a step of its own. Counted
alike, a program with a long first prompt would seem to have done much of its work before it has
generated anything, and one with a short prompt would wait behind it. Owns the estimate for one
kind: the engine time of each program is modelled as one share for its generated tokens and one for
the others (least squares of the relative errors; older programs count less and less). Must not know
what the weight is used for.
"""

from __future__ import annotations

MIN_PROGRAMS = 8
"""With fewer programs ``value`` stays 1."""
MEMORY = 256
"""The number of programs after which an older one counts about a third."""
SAME_RATIO = 1e-3
"""If the ratios of prompt to answer vary less than this, the two costs cannot be told apart, and
``value`` stays. It does not matter: both numbers of tokens then rise together."""


class PromptWeight:
    """The weight of a token of a prompt. ``value``: from 0, where prompts cost nothing, to 1, where
    they cost as much as generated tokens or more."""

    __slots__ = (
        "_cross",
        "_generated",
        "_generated_rate",
        "_num",
        "_prompt",
        "_prompt_rate",
        "value",
    )

    def __init__(self) -> None:
        self.value = 1.0
        self._num = 0
        self._generated = 0.0
        self._prompt = 0.0
        self._cross = 0.0
        self._generated_rate = 0.0
        self._prompt_rate = 0.0

    def learn(self, num_prompt: float, num_generated: float, service_s: float) -> None:
        """Learn from a program that has ended. One without tokens of both kinds, or without engine
        time, is ignored."""
        if num_prompt <= 0 or num_generated <= 0 or service_s <= 0:
            return
        generated, prompt = num_generated / service_s, num_prompt / service_s
        keep = 1.0 - 1.0 / MEMORY
        self._generated = keep * self._generated + generated * generated
        self._prompt = keep * self._prompt + prompt * prompt
        self._cross = keep * self._cross + generated * prompt
        self._generated_rate = keep * self._generated_rate + generated
        self._prompt_rate = keep * self._prompt_rate + prompt
        self._num += 1
        if self._num >= MIN_PROGRAMS:
            self._solve()

    def _solve(self) -> None:
        """Set ``value`` from the seconds of a token of either kind, by the normal equations."""
        squares = self._generated * self._prompt
        if squares - self._cross * self._cross < SAME_RATIO * squares:
            return
        of_generated = self._generated_rate * self._prompt - self._prompt_rate * self._cross
        of_prompt = self._prompt_rate * self._generated - self._generated_rate * self._cross
        if of_generated <= 0 or of_prompt >= of_generated:
            self.value = 1.0
        else:
            self.value = max(0.0, of_prompt / of_generated)
