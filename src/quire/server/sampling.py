"""From a request's sampling fields and the model's defaults to a ``SamplerSpec``.

Owns the order of the processors and what an absent field means. Must not know routes or engines.

Order, as in vLLM: bias, penalties, temperature, min-p, top-k, top-p. Absent fields come from the
model's generation_config.json, whose ``do_sample: false`` means greedy; else OpenAI's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.core.decoding import Processor, SamplerSpec
from quire.core.errors import InvalidArgument
from quire.server.schemas.generation import SamplingFields

_SEED_MASK = (1 << 62) - 1
"""Seeds are folded to 62 bits: choice i draws with seed + i, which must stay below 2^63."""

_GREEDY_BELOW = 1e-5
"""Logits divided by less than this overflow; the best token is certain long before."""


def sampler_of(fields: SamplingFields, defaults: Mapping[str, Any], vocab_size: int) -> SamplerSpec:
    """The sampler of one request.

    Raises:
        InvalidArgument: ``logit_bias`` names a token that the model does not have.
    """
    temperature = _temperature(fields, defaults)
    greedy = temperature < _GREEDY_BELOW
    processors = [*_bias(fields, vocab_size), *_penalties(fields, defaults)]
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
    """The request's value, else the model's, else the one that changes nothing."""
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
    # a model whose config asks for greedy decoding has no opinion on how to sample
    opinions = {} if defaults.get("do_sample") is False else defaults
    found = []
    if temperature != 1:
        found.append(Processor("temperature", {"temperature": temperature}))
    if (min_p := _pick(fields.min_p, opinions, "min_p", 0.0)) > 0:
        found.append(Processor("min_p", {"p": min_p}))
    if (top_k := int(_pick(fields.top_k, opinions, "top_k", 0))) > 0:
        found.append(Processor("top_k", {"k": top_k}))
    if (top_p := _pick(fields.top_p, opinions, "top_p", 1.0)) < 1:
        found.append(Processor("top_p", {"p": top_p}))
    return found


__all__ = ["sampler_of"]
