"""What a token of a prompt costs beside a generated one, learned from the programs that ended.

A prompt of many tokens is computed at once, a generated token takes a step of its own. Counted
alike, a program with a long first prompt would seem to have done much of its work when it has done
nothing yet, and one with a short prompt would wait behind it. Owns the estimate of one kind: the
engine time of each program is taken to be a share for its generated tokens and one for the others
(least squares of the relative errors, older programs counting less and less). Must not know what
the weight is used for.
"""

from __future__ import annotations

MIN_PROGRAMS = 8
"""Below so many a token is a token."""
MEMORY = 256
"""Programs after which an older one counts a third."""
SAME_RATIO = 1e-3
"""With less variance than that between the ratios of prompt to answer the two costs cannot be told
apart, and do not matter: both figures then rise together."""


class PromptWeight:
    """``value``: from 0, where prompts cost nothing, to 1."""

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
        """A program ended. One that has not both kinds of tokens says nothing."""
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
        """Seconds of a token of either sort, by the normal equations."""
        squares = self._generated * self._prompt
        if squares - self._cross * self._cross < SAME_RATIO * squares:
            return
        of_generated = self._generated_rate * self._prompt - self._prompt_rate * self._cross
        of_prompt = self._prompt_rate * self._generated - self._generated_rate * self._cross
        if of_generated <= 0 or of_prompt >= of_generated:
            self.value = 1.0
        else:
            self.value = max(0.0, of_prompt / of_generated)
