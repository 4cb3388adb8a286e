"""What a fake engine says: ``ScriptedModel`` turns a function of the prompt into a script."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Sequence

from quire.core.interfaces import Tokenizer

Answer = Callable[[str], str]
"""The prompt as text (special tokens spelled out) to what the model says; it may contain special
tokens. The end-of-text token is added behind it."""


class ScriptedModel:
    """A ``Script`` that answers prompts: ``FakeEngine(script=ScriptedModel(answer))``.

    The first time a token list is seen it counts as a prompt, unless it is an earlier prompt plus
    a part of its answer: then the answer goes on. So every path through the engine (decode
    commands, single forwards, a resume after preemption) says the same. Behind the end of an answer
    comes the end-of-text token for ever.
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
        """Register what follows the prompt and every part of its answer, and the end itself."""
        key = key.copy()
        for token in (*answer, self._end, self._end):
            self._next.setdefault(key.digest(), token)
            key.update(array("q", [token]).tobytes())


def answers(texts: Sequence[str]) -> Answer:
    """One text per new prompt, in order; the last one for all further prompts."""
    remaining = list(texts)

    def answer(prompt: str) -> str:
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    return answer
