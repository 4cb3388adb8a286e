"""The decode state of one sequence in the fake engine: sampling, stop predicates, end reasons."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from quire.core.batch import F32, OpenSequence
from quire.core.batch_result import SequenceEnd
from quire.core.decoding import StopSpec
from quire.core.interfaces import Tokenizer
from quire.testing.fake_engine.grammar import FakeGrammarMatcher
from quire.testing.fake_engine.sampling import best_first, log_softmax, sample_token


@dataclass(slots=True)
class EmittedToken:
    """One sampled token with log probabilities from the unprocessed logits."""

    token: int
    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]


@dataclass(slots=True)
class StopMatcher:
    """Checks a growing output against a ``StopSpec``."""

    spec: StopSpec
    output: bytes = b""
    num_tokens: int = 0

    @property
    def exhausted(self) -> bool:
        """Whether no further token may be sampled."""
        return self.num_tokens >= self.spec.max_tokens

    def excluded_tokens(self) -> tuple[int, ...]:
        """Stop tokens that may not be sampled yet."""
        return self.spec.token_ids if self.num_tokens < self.spec.min_tokens else ()

    def push(self, token: int, token_bytes: bytes) -> tuple[SequenceEnd, int]:
        """Record a sampled token; returns how it ends the output and what matched (else -1)."""
        self.num_tokens += 1
        self.output += token_bytes
        if token in self.spec.token_ids:
            return SequenceEnd.STOP_TOKEN, token
        ends = [
            (self.output.find(text) + len(text), index)
            for index, text in enumerate(self.spec.strings)
            if text in self.output
        ]
        if ends:
            return SequenceEnd.STOP_STRING, min(ends)[1]
        if self.exhausted:
            return SequenceEnd.MAX_TOKENS, -1
        return SequenceEnd.RUNNING, -1


@dataclass(slots=True)
class FakeSequence:
    """A running decode. ``cursor`` and ``position``: where the next token is appended."""

    opened: OpenSequence
    cursor: int
    limit: int
    position: int
    history: list[int]
    num_prompt: int
    stop: StopMatcher
    matcher: FakeGrammarMatcher | None
    failure: Exception | None = None
    end: SequenceEnd = SequenceEnd.RUNNING
    matched: int = -1
    last_token: int | None = None
    emitted: list[EmittedToken] = field(default_factory=list)

    @property
    def running(self) -> bool:
        return self.end is SequenceEnd.RUNNING

    def finish(self, end: SequenceEnd) -> None:
        self.end = end

    def take(self, logits: F32, tokenizer: Tokenizer) -> None:
        """Sample the next token from ``logits`` and apply the stop predicates.

        Raises:
            InvalidArgument: nothing can be sampled.
        """
        token = sample_token(
            self._constrained(logits),
            self.opened.sampler,
            self.position,
            self.history,
            self.history[self.num_prompt :],
        )
        self.emitted.append(self._emit(token, logits))
        self.last_token = token
        self.history.append(token)
        self.end, self.matched = self.stop.push(token, tokenizer.token_bytes(token))
        if self.matcher is not None:
            self.matcher.consume([token])
            if self.matcher.finished and self.end in (SequenceEnd.RUNNING, SequenceEnd.MAX_TOKENS):
                self.end = SequenceEnd.GRAMMAR

    def _constrained(self, logits: F32) -> F32:
        constrained = logits.copy()
        if self.matcher is not None:
            constrained[~self.matcher.allowed(len(logits))] = -np.inf
        constrained[list(self.stop.excluded_tokens())] = -np.inf
        return constrained

    def _emit(self, token: int, logits: F32) -> EmittedToken:
        if self.opened.num_logprobs is None:
            return EmittedToken(token, float("nan"), [], [])
        logprobs = log_softmax(logits)
        best = best_first(logits, self.opened.num_logprobs)
        return EmittedToken(token, float(logprobs[token]), best.tolist(), logprobs[best].tolist())


def open_state(
    operation: OpenSequence, tokenizer: Tokenizer, matcher: FakeGrammarMatcher | None
) -> FakeSequence:
    """The state that ``operation`` describes, rebuilt from the tokens generated before."""
    history = operation.history.tolist()
    num_prompt = len(history) - operation.num_generated
    generated = history[num_prompt:]
    stop = StopMatcher(operation.stop)
    for token in generated:
        stop.push(token, tokenizer.token_bytes(token))
    if matcher is not None:
        matcher.consume(generated)
    return FakeSequence(
        opened=operation,
        cursor=operation.cursor,
        limit=operation.limit,
        position=operation.position,
        history=history,
        num_prompt=num_prompt,
        stop=stop,
        matcher=matcher,
    )
