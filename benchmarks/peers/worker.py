"""What every worker has in common: requests come in as JSON lines, answers go out the same way.

A worker runs in its peer's own environment, so this module imports the standard library alone and
knows nothing of Quire. Standard output belongs to the answers; what a peer prints goes to standard
error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

Prompts = list[list[int]]
Arrived = Callable[[int, int], None]
"""``arrived(prompt, count)``: ``count`` more tokens of the prompt with this index are known."""


class Model(Protocol):
    """A loaded model behind one way of driving it."""

    version: str

    def generate(self, prompts: Prompts, num_tokens: int, arrived: Arrived) -> None:
        """Run all prompts at once, greedy, each for exactly ``num_tokens`` tokens."""
        ...


class Stopwatch:
    """When the tokens of one run became known, in seconds from its start."""

    def __init__(self, num_prompts: int) -> None:
        self._counts = [0] * num_prompts
        self._num_tokens = 0
        self._num_tokens_at_all_started = 0
        self._first_s = 0.0
        self._all_started_s = 0.0
        self._last_s = 0.0
        self._start_s = time.perf_counter()

    def arrived(self, prompt: int, count: int) -> None:
        now_s = time.perf_counter() - self._start_s
        if not self._num_tokens:
            self._first_s = now_s
        self._counts[prompt] += count
        self._num_tokens += count
        self._last_s = now_s
        if not self._all_started_s and all(self._counts):
            self._all_started_s = now_s
            self._num_tokens_at_all_started = self._num_tokens

    def report(self) -> dict[str, float]:
        """``step_s`` is the time per token of one prompt, counted from when the last prompt had its
        first token: what runs from then on are decode steps of the whole batch alone."""
        steps = (self._num_tokens - self._num_tokens_at_all_started) / len(self._counts)
        return {
            "first_s": self._first_s,
            "step_s": (self._last_s - self._all_started_s) / steps if steps else 0.0,
            "total_s": self._last_s,
            "num_tokens": self._num_tokens,
        }


def take_stdout() -> Any:
    """Keep standard output for answers; everything else that is printed goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def serve(load: Callable[[dict[str, Any]], Model]) -> None:
    """Load what the first line describes, then run one generation per line until input ends."""
    answers = take_stdout()

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    started_s = time.perf_counter()
    model = load(json.loads(sys.stdin.readline()))
    answer(version=model.version, load_s=time.perf_counter() - started_s)
    for line in sys.stdin:
        request = json.loads(line)
        watch = Stopwatch(len(request["prompts"]))
        model.generate(request["prompts"], request["num_tokens"], watch.arrived)
        report = watch.report()
        expected = len(request["prompts"]) * request["num_tokens"]
        if report["num_tokens"] != expected:
            raise RuntimeError(f"{report['num_tokens']:g} tokens came, {expected} were asked for")
        answer(**report)
