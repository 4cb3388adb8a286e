"""Samplers, stop conditions and grammars as data, as decode and sample commands carry them.

A sampler is an ordered list of named processors with their parameters, then a draw. The engine
vectorises it over the batch; a program never ships code to the engine. Random numbers are counter
based on (seed, position), so the same seed gives the same draw in any batch.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Params = dict[str, float | int | bool | str | list[int | float | list[int]]]


class Processor(msgspec.Struct, frozen=True):
    """One named step over the logits. The standard names and their parameters:

    ``logit_bias``  tokens, biases · ``allowed_tokens`` tokens · ``bad_words`` tokens (ids, and
    lists of ids for words of several) · ``repetition_penalty`` penalty · ``frequency_penalty``
    penalty · ``presence_penalty`` penalty · ``dry`` multiplier, base, allowed_length, range,
    breakers · ``top_k`` k · ``temperature`` temperature · ``min_p`` p · ``top_p`` p ·
    ``typical`` p

    ``docs/reference/sampling.md`` defines each. Installed packages may add names.
    """

    name: str
    params: Params = msgspec.field(default_factory=dict)


class SamplerSpec(msgspec.Struct, frozen=True):
    """How the next token is chosen from logits.

    ``greedy`` takes the best token after all processors; otherwise a token is drawn with
    ``seed`` (picked and recorded by control when it is ``None``).
    """

    processors: tuple[Processor, ...] = ()
    greedy: bool = True
    seed: int | None = None


class StopSpec(msgspec.Struct, frozen=True):
    """When a decode ends: conditions that travel as data and are checked by the engine.

    ``max_tokens``    at most this many tokens are sampled (0: only the prompt is run).
    ``min_tokens``    stop tokens are masked in the logits until this many have been sampled.
    ``token_ids``     sampling one of these ends the row; it is part of the output.
    ``strings``       UTF-8 byte strings; the row ends when its output bytes contain one.
    """

    max_tokens: int
    min_tokens: int = 0
    token_ids: tuple[int, ...] = ()
    strings: tuple[bytes, ...] = ()


class GrammarSpec(msgspec.Struct, frozen=True):
    """A constraint on the output, compiled by llguidance.

    ``json_schema`` source is the schema as JSON text; ``regex`` a regular expression; ``lark`` a
    Lark grammar in llguidance's dialect.
    """

    kind: Literal["json_schema", "regex", "lark"]
    source: str


class Dist(msgspec.Struct, frozen=True, gc=False):
    """A next-token distribution, truncated to its top K (Pie 4.2).

    ``token_ids`` and ``probs`` are sorted by descending probability, ties by lower id. The
    probabilities are those of the full softmax, so their sum may be less than one.
    """

    token_ids: list[int]
    probs: list[float]

    def max_index(self) -> int:
        """The most likely token id."""
        return self.token_ids[0]


FinishReason = Literal["stop", "length", "cancelled"]
"""``stop``: a stop token, a stop string or the grammar's end. ``length``: max_tokens or no room."""


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Log probability of one token and of the best alternatives at its place (before
    processors)."""

    token_id: int
    logprob: float
    top_ids: list[int] = msgspec.field(default_factory=list)
    top_logprobs: list[float] = msgspec.field(default_factory=list)


class DecodeChunk(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A part of a decode's output, in order. The last chunk carries ``finish_reason``.

    ``num_cached_tokens`` (first chunk only) counts prompt tokens that were not computed because
    their pages were found in the prefix index. ``prompt_logprobs`` (first chunk only) has one entry
    per prompt token after the first. ``matched``: the stop token id or stop string that ended it.
    ``first_token_after_s`` (only of a decode that does not stream): seconds from the arrival of the
    command until its first token was there.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    matched: int | bytes | None = None
    num_cached_tokens: int = 0
    seed: int | None = None
    first_token_after_s: float | None = None
