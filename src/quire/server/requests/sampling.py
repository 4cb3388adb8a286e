"""Turns a request's sampling fields and the model's defaults into a ``SamplerSpec``.

Owns the order of the processors and the meaning of an absent field. Must not know routes or
engines.

Order: bias, allowed tokens, bad words, penalties, DRY, packages' processors, top-k, temperature,
min-p, top-p, typical. The distributions equal those of vLLM's order; top-k comes first because the
later steps then process k tokens instead of the vocabulary. Absent fields come from the model's
generation_config.json, whose ``do_sample: false`` means greedy; otherwise from OpenAI's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from quire.core.decoding import Params, Processor, SamplerSpec
from quire.core.errors import InvalidArgument
from quire.core.interfaces import Tokenizer
from quire.server.schemas.generation import SamplingFields

_SEED_MASK = (1 << 62) - 1
"""Seeds are reduced to 62 bits: choice i draws with seed + i, which must stay below 2^63."""

_GREEDY_BELOW = 1e-5
"""Division by a smaller temperature overflows the logits; at this one the best token is certain
already."""


_DRY_BREAKERS = ("\n", ":", '"', "*")
"""The defaults of DRY's reference implementation."""


def sampler_of(
    fields: SamplingFields, defaults: Mapping[str, Any], vocab_size: int, tokenizer: Tokenizer
) -> SamplerSpec:
    """Return the sampler of one request.

    Raises:
        InvalidArgument: a token id outside the model's vocabulary.
    """
    temperature = _temperature(fields, defaults)
    greedy = temperature < _GREEDY_BELOW
    processors = [
        *_bias(fields, vocab_size),
        *_allowed(fields, vocab_size),
        *_bad_words(fields, tokenizer),
        *_penalties(fields, defaults),
        *_dry(fields, tokenizer),
        *_named(fields),
    ]
    if not greedy:
        processors += _truncation(fields, defaults, temperature)
    seed = fields.seed & _SEED_MASK if fields.seed is not None else None
    return SamplerSpec(tuple(processors), greedy=greedy, seed=seed)


def _temperature(fields: SamplingFields, defaults: Mapping[str, Any]) -> float:
    if fields.temperature is not None:
        return fields.temperature
    if defaults.get("do_sample") is False:
        return 0.0
    return float(_pick(None, defaults, "temperature", 1.0))


def _pick(value: float | None, defaults: Mapping[str, Any], name: str, neutral: float) -> float:
    """Return the request's value, else the model's default, else the neutral value."""
    if value is not None:
        return value
    default = defaults.get(name)
    return neutral if default is None else default


def _bias(fields: SamplingFields, vocab_size: int) -> list[Processor]:
    if not fields.logit_bias:
        return []
    tokens = [int(key) for key in fields.logit_bias]
    unknown = [token for token in tokens if token >= vocab_size]
    if unknown:
        raise InvalidArgument(
            f"logit_bias names token {unknown[0]}, but the model has {vocab_size} tokens",
            param="logit_bias",
        )
    biases = list(fields.logit_bias.values())
    return [Processor("logit_bias", {"tokens": list(tokens), "biases": list(biases)})]


def _allowed(fields: SamplingFields, vocab_size: int) -> list[Processor]:
    if not fields.allowed_token_ids:
        return []
    highest = max(fields.allowed_token_ids)
    if highest >= vocab_size:
        raise InvalidArgument(
            f"allowed_token_ids has token {highest}, but the model has {vocab_size} tokens",
            param="allowed_token_ids",
        )
    return [Processor("allowed_tokens", {"tokens": list(fields.allowed_token_ids)})]


def _bad_words(fields: SamplingFields, tokenizer: Tokenizer) -> list[Processor]:
    """Return the tokens of each word at the start of a text, and after a space if that is a single
    word too."""
    words: list[int | float | list[int]] = []
    for text in fields.bad_words or ():
        bare = tokenizer.encode(text.lstrip() or text, special=False)
        spaced = tokenizer.encode(" " + text.lstrip(), special=False)
        if bare:
            words.append(bare)
        if bare and len(spaced) == len(bare) and spaced[0] != bare[0]:
            words.append(spaced)
    return [Processor("bad_words", {"tokens": words})] if words else []


def _dry(fields: SamplingFields, tokenizer: Tokenizer) -> list[Processor]:
    if not fields.dry_multiplier:
        return []
    texts = fields.dry_sequence_breakers
    params: Params = {
        "multiplier": fields.dry_multiplier,
        "breakers": list(_last_tokens(_DRY_BREAKERS if texts is None else texts, tokenizer)),
    }
    if fields.dry_base is not None:
        params["base"] = fields.dry_base
    if fields.dry_allowed_length is not None:
        params["allowed_length"] = fields.dry_allowed_length
    if fields.dry_range is not None:
        params["range"] = fields.dry_range
    return [Processor("dry", params)]


def _last_tokens(texts: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    """Return the token with which each text ends when it follows a letter, as DRY defines it."""
    return sorted({tokenizer.encode("a" + text, special=False)[-1] for text in texts})


def _named(fields: SamplingFields) -> list[Processor]:
    """Return the processors that the request names. The engine checks names and values, because it
    knows the installed processors."""
    found = []
    for one in fields.processors or ():
        try:
            params = msgspec.convert(one.params or {}, Params)
            msgspec.msgpack.encode(params)
        except (msgspec.ValidationError, OverflowError) as exc:
            raise InvalidArgument(
                f"the parameters of processor {one.name!r} must be numbers, strings, true, false "
                f"or lists of numbers: {exc}",
                param="processors",
            ) from exc
        found.append(Processor(one.name, params))
    return found


def _penalties(fields: SamplingFields, defaults: Mapping[str, Any]) -> list[Processor]:
    repetition = _pick(fields.repetition_penalty, defaults, "repetition_penalty", 1.0)
    found = []
    if repetition != 1:
        found.append(Processor("repetition_penalty", {"penalty": repetition}))
    if fields.frequency_penalty:
        found.append(Processor("frequency_penalty", {"penalty": fields.frequency_penalty}))
    if fields.presence_penalty:
        found.append(Processor("presence_penalty", {"penalty": fields.presence_penalty}))
    return found


def _truncation(
    fields: SamplingFields, defaults: Mapping[str, Any], temperature: float
) -> list[Processor]:
    # the sampling values of a model whose config asks for greedy decoding are ignored
    opinions = {} if defaults.get("do_sample") is False else defaults
    found = []
    if (top_k := int(_pick(fields.top_k, opinions, "top_k", 0))) > 0:
        found.append(Processor("top_k", {"k": top_k}))
    if temperature != 1:
        found.append(Processor("temperature", {"temperature": temperature}))
    if (min_p := _pick(fields.min_p, opinions, "min_p", 0.0)) > 0:
        found.append(Processor("min_p", {"p": min_p}))
    if (top_p := _pick(fields.top_p, opinions, "top_p", 1.0)) < 1:
        found.append(Processor("top_p", {"p": top_p}))
    if (typical_p := _pick(fields.typical_p, opinions, "typical_p", 1.0)) < 1:
        found.append(Processor("typical", {"p": typical_p}))
    return found
