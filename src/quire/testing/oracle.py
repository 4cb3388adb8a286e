"""The expected output of a fake engine: a reference decoder without pages, batches or memory.

Computes the fake model (defined in ``fake_engine.hashing``) in plain Python over an immutable list
of tokens. Shares no code with the engine's data path, so it can serve as the oracle of every test
that drives control with fake engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.core.decoding import (
    Dist,
    FinishReason,
    GrammarSpec,
    SamplerSpec,
    StopSpec,
    TokenLogprobs,
)
from quire.core.interfaces import Tokenizer
from quire.testing.fake_engine.grammar import FakeGrammarCompiler
from quire.testing.fake_engine.hashing import logits_of
from quire.testing.fake_engine.sampling import best_first, log_softmax, sample_token
from quire.testing.tokenizer import FakeTokenizer

_WORD = (1 << 64) - 1
_TOKEN_SALT = 0x7F4A7C159E3779B9
_ADAPTER_SALT = 0xA24BAED4963EE407
_TURN = 0xC2B2AE3D27D4EB4F
_LAYER_SALTS = (0xD6E8FEB86659FD93, 0xA0761D6478BD642F)


def _mix(value: int) -> int:
    """SplitMix64's finaliser."""
    value = (value + 0x9E3779B97F4A7C15) & _WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)


def token_content(token_id: int) -> int:
    """The content of an embedded token. A hidden state used as input is its own content."""
    return _mix(token_id ^ _TOKEN_SALT)


@dataclass(frozen=True, slots=True)
class SeenToken:
    """A token that has been run: its position, and per layer the value that later tokens see."""

    position: int
    values: tuple[int, int]


def turned(token: SeenToken, shift: int) -> SeenToken:
    """A token that was taken ``shift`` positions on."""
    first, second = ((value + shift * _TURN) & _WORD for value in token.values)
    return SeenToken(token.position + shift, (first, second))


@dataclass(frozen=True, slots=True)
class ReferenceContext:
    """Tokens that were run, in that order. Immutable, so a fork is a reference.

    ``run`` returns the context with the new tokens appended. To mask or truncate, make a context of
    fewer ``seen``.
    """

    seen: tuple[SeenToken, ...] = ()

    def run(
        self,
        contents: Sequence[int],
        positions: Sequence[int],
        mask: Sequence[Sequence[bool]] | None = None,
        *,
        adapter: int = -1,
    ) -> tuple[ReferenceContext, list[int]]:
        """Run new tokens together; returns the extended context and their hidden states.

        ``mask``: per new token which of ``seen`` and of the new tokens it sees; by default those at
        lower positions and itself. ``adapter``: index of the adapter to run with.
        """
        new = range(len(contents))
        old_positions = [token.position for token in self.seen]
        if mask is None:
            mask = [
                [p < positions[i] for p in old_positions]
                + [j == i or positions[j] < positions[i] for j in new]
                for i in new
            ]
        layers = [[_first(contents[i], positions[i], adapter) for i in new]]
        for layer, salt in enumerate(_LAYER_SALTS):
            old = [token.values[layer] for token in self.seen]
            terms = [_mix(value ^ salt) for value in old + layers[layer]]
            layers.append(
                [
                    _next(
                        layers[layer][i],
                        salt,
                        [t for t, on in zip(terms, mask[i], strict=True) if on],
                    )
                    for i in new
                ]
            )
        run = tuple(SeenToken(positions[i], (layers[0][i], layers[1][i])) for i in new)
        return ReferenceContext(self.seen + run), layers[2]

    def run_tokens(
        self, token_ids: Sequence[int], position: int | None = None, *, adapter: int = -1
    ) -> tuple[ReferenceContext, list[int]]:
        """Run tokens at consecutive positions, by default after the highest one."""
        if position is None:
            position = 1 + max((token.position for token in self.seen), default=-1)
        contents = [token_content(token) for token in token_ids]
        return self.run(contents, range(position, position + len(contents)), adapter=adapter)


def _first(content: int, position: int, adapter: int) -> int:
    value = _mix((content + _mix(position)) & _WORD)
    return value if adapter < 0 else _mix(value ^ _mix(adapter ^ _ADAPTER_SALT))


def _next(own: int, salt: int, visible_terms: list[int]) -> int:
    return _mix((own + sum(visible_terms) * salt) & _WORD)


def expected_dist(hidden: int, vocab_size: int, top_k: int = 256) -> Dist:
    """The distribution after a hidden state."""
    logprobs = log_softmax(logits_of(np.array([hidden], np.uint64), vocab_size)[0])
    best = best_first(logprobs, top_k)
    return Dist(best.tolist(), np.exp(logprobs[best]).tolist())


def expected_logprobs(hidden: int, token_id: int, vocab_size: int, top_k: int) -> TokenLogprobs:
    """The log probability of ``token_id`` after a hidden state, and the best alternatives."""
    logprobs = log_softmax(logits_of(np.array([hidden], np.uint64), vocab_size)[0])
    best = best_first(logprobs, top_k)
    return TokenLogprobs(
        token_id, float(logprobs[token_id]), best.tolist(), logprobs[best].tolist()
    )


@dataclass(frozen=True, slots=True)
class ExpectedDecode:
    """The expected result of a ``Decode``. ``ran``: the tokens that its pages hold afterwards.

    ``hidden``: the states of those tokens; the last prompt token's precedes ``tokens[0]``.
    """

    tokens: list[int]
    finish_reason: FinishReason
    matched: int | bytes | None
    ran: tuple[SeenToken, ...]
    hidden: list[int]


def expected_decode(
    tokens: Sequence[int],
    stop: StopSpec,
    *,
    sampler: SamplerSpec | None = None,
    context: ReferenceContext | None = None,
    position: int | None = None,
    history: Sequence[int] | None = None,
    grammar: GrammarSpec | None = None,
    max_room: int | None = None,
    tokenizer: Tokenizer | None = None,
    adapter: int = -1,
) -> ExpectedDecode:
    """The result of a ``Decode`` of ``tokens`` after ``context``.

    ``history``: tokens before ``tokens``, for penalties. ``max_room``: slots that the output pages
    have for prompt and output together. ``adapter``: index of the adapter to run with.
    """
    tokenizer, sampler = tokenizer or FakeTokenizer(), sampler or SamplerSpec()
    matcher = FakeGrammarCompiler(tokenizer).compile(grammar) if grammar is not None else None
    before = context or ReferenceContext()
    prompt = [*(history or ()), *tokens]
    output: list[int] = []
    matched: int | bytes | None = None
    after, hidden = before.run_tokens(tokens, position, adapter=adapter)
    reason: FinishReason | None = "length" if stop.max_tokens == 0 else None
    while reason is None:
        logits = logits_of(np.array(hidden[-1:], np.uint64), tokenizer.vocab_size)[0]
        if matcher is not None:
            logits[~matcher.allowed(tokenizer.vocab_size)] = -np.inf
        if len(output) < stop.min_tokens:
            logits[list(stop.token_ids)] = -np.inf
        next_position = after.seen[-1].position + 1
        output.append(sample_token(logits, sampler, next_position, prompt + output, output))
        if matcher is not None:
            matcher.consume(output[-1:])
        num_ran = len(after.seen) - len(before.seen)
        matched = _stop_match(output, stop, tokenizer)
        if matched is not None or (matcher is not None and matcher.finished):
            reason = "stop"
        elif len(output) == stop.max_tokens or num_ran == max_room:
            reason = "length"
        else:
            after, new = after.run_tokens(output[-1:], next_position, adapter=adapter)
            hidden += new
    return ExpectedDecode(output, reason, matched, after.seen[len(before.seen) :], hidden)


def _stop_match(output: list[int], stop: StopSpec, tokenizer: Tokenizer) -> int | bytes | None:
    """The stop token or string that ends ``output``; of several strings, the one completed
    first."""
    if output[-1] in stop.token_ids:
        return output[-1]
    text = b"".join(tokenizer.token_bytes(token) for token in output)
    found = [string for string in stop.strings if string in text]
    return min(found, key=lambda string: text.find(string) + len(string), default=None)


def expected_tokens(
    tokens: Sequence[int],
    stop: StopSpec,
    *,
    sampler: SamplerSpec | None = None,
    context: ReferenceContext | None = None,
    grammar: GrammarSpec | None = None,
    max_room: int | None = None,
    adapter: int = -1,
) -> list[int]:
    """The tokens of a decode with the fake tokenizer; see ``expected_decode``."""
    return expected_decode(
        tokens,
        stop,
        sampler=sampler,
        context=context,
        grammar=grammar,
        max_room=max_room,
        adapter=adapter,
    ).tokens
