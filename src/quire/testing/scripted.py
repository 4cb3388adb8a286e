"""``ScriptedModel``: a script for the fake engine from a function of the prompt."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence

from quire.core.interfaces import Tokenizer

Answer = Callable[[str], str]
"""Maps the prompt as text (special tokens spelled out) to the model's answer, which may contain
special tokens. The end-of-text token is appended to it."""


class ScriptedModel:
    """A ``Script`` that answers prompts: ``FakeEngine(script=ScriptedModel(answer))``.

    A token list that is seen for the first time counts as a prompt, unless it is an earlier prompt
    plus part of its answer: then the answer continues. Every path through the engine (decode
    commands, single forwards, resuming after preemption) therefore gives the same answer. After the
    end of an answer only end-of-text tokens follow.
    """

    def __init__(self, answer: Answer, tokenizer: Tokenizer) -> None:
        self._answer = answer
        self._tokenizer = tokenizer
        self._end = tokenizer.eos_token_ids[-1]
        self._next: dict[bytes, int] = {}
        self.prompts: list[str] = []

    def __call__(self, seen: Sequence[int]) -> int:
        if tuple(seen[-2:]) == (self._end, self._end):
            return self._end
        key = hashlib.blake2b(array("q", seen).tobytes())
        if key.digest() not in self._next:
            prompt = self._tokenizer.decode(seen)
            self.prompts.append(prompt)
            self._learn(key, self._tokenizer.encode(self._answer(prompt)))
        return self._next[key.digest()]

    def _learn(self, key: hashlib.blake2b, answer: list[int]) -> None:
        """Register the token that follows the prompt, each part of its answer, and the end of the
        answer."""
        key = key.copy()
        for token in (*answer, self._end, self._end):
            self._next.setdefault(key.digest(), token)
            key.update(array("q", [token]).tobytes())


def answers(texts: Sequence[str]) -> Answer:
    """One text per new prompt, in order; the last text for all further prompts."""
    remaining = list(texts)

    def answer(prompt: str) -> str:
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    return answer
