"""Holds what all workers have in common: requests arrive as JSON lines, answers leave as JSON
lines.

A worker runs in its peer's own environment, so this module imports only the standard library and
does not know Quire. Standard output is for answers; other output of a peer goes to standard error.
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


class WorkerModel(Protocol):
    """A loaded model behind one interface."""

    version: str

    def generate(self, prompts: Prompts, num_tokens: int, arrived: Arrived) -> None:
        """Run all prompts at once, greedy, each for exactly ``num_tokens`` tokens."""
        ...


class Stopwatch:
    """The times at which the tokens of one run became known, in seconds from its start."""

    def __init__(self, num_prompts: int) -> None:
        self._arrivals: list[list[tuple[float, int]]] = [[] for _ in range(num_prompts)]
        self._start_s = time.perf_counter()

    def arrived(self, prompt: int, count: int) -> None:
        self._arrivals[prompt].append((time.perf_counter() - self._start_s, count))

    def report(self) -> dict[str, float]:
        return {
            "first_s": min(of_one[0][0] for of_one in self._arrivals),
            "step_s": self._step_s(),
            "total_s": max(of_one[-1][0] for of_one in self._arrivals),
            "num_tokens": sum(count for of_one in self._arrivals for _, count in of_one),
        }

    def _step_s(self) -> float:
        """A prompt's time per token while the whole batch decodes. Before the last prompt has its
        first token, some prompts are still in prefill; after the first prompt has ended, the batch
        is smaller. The tokens of one step become known one after another, so each prompt's time
        ends with its own token of the step in which the first prompt gets its last token."""
        begin_s = max(of_one[0][0] for of_one in self._arrivals)
        end_s = min(of_one[-1][0] for of_one in self._arrivals)
        passed_s, num_tokens = 0.0, 0
        for of_one in self._arrivals:
            first, last = (_index_at(of_one, at_s) for at_s in (begin_s, max(begin_s, end_s)))
            passed_s += of_one[last][0] - of_one[first][0]
            num_tokens += sum(count for _, count in of_one[first + 1 : last + 1])
        return passed_s / num_tokens if num_tokens else 0.0


def _index_at(arrivals: list[tuple[float, int]], wanted_s: float) -> int:
    """The index of the first arrival at or after that time; of the last one if there is none."""
    return next((i for i, (at_s, _) in enumerate(arrivals) if at_s >= wanted_s), len(arrivals) - 1)


def take_stdout() -> Any:
    """Keep standard output for answers; everything else that is printed goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def serve(load: Callable[[dict[str, Any]], WorkerModel]) -> None:
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
            raise RuntimeError(
                f"{report['num_tokens']:g} tokens arrived, {expected} were asked for"
            )
        answer(**report)
