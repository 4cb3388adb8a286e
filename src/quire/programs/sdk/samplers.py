"""How the next token is chosen, in words that users of models know."""

from __future__ import annotations

from collections.abc import Mapping

from quire.core.decoding import Params, Processor, SamplerSpec
from quire.core.errors import InvalidArgument


def greedy(
    *,
    logit_bias: Mapping[int, float] | None = None,
    repetition_penalty: float = 1.0,
) -> SamplerSpec:
    """Always the most likely token (after bias and penalty)."""
    return SamplerSpec(tuple(_shaping(logit_bias, repetition_penalty, 0.0, 0.0)), greedy=True)


def temperature(
    value: float = 1.0,
    *,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    seed: int | None = None,
    logit_bias: Mapping[int, float] | None = None,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
) -> SamplerSpec:
    """Draw a token. 0 is ``greedy``; ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 leave all tokens in.

    Raises:
        InvalidArgument: a value out of its range.
    """
    if value < 0 or not 0 < top_p <= 1 or top_k < 0 or not 0 <= min_p <= 1:
        raise InvalidArgument(
            f"temperature {value}, top_p {top_p}, top_k {top_k}, min_p {min_p}: choose "
            "temperature >= 0, 0 < top_p <= 1, top_k >= 0, 0 <= min_p <= 1"
        )
    steps = _shaping(logit_bias, repetition_penalty, presence_penalty, frequency_penalty)
    if value == 0:
        return SamplerSpec(tuple(steps), greedy=True)
    if value != 1.0:
        steps.append(Processor("temperature", {"temperature": value}))
    if top_k:
        steps.append(Processor("top_k", {"k": top_k}))
    if top_p < 1.0:
        steps.append(Processor("top_p", {"p": top_p}))
    if min_p > 0.0:
        steps.append(Processor("min_p", {"p": min_p}))
    return SamplerSpec(tuple(steps), greedy=False, seed=seed)


def _shaping(
    logit_bias: Mapping[int, float] | None,
    repetition: float,
    presence: float,
    frequency: float,
) -> list[Processor]:
    steps: list[Processor] = []
    if logit_bias:
        params: Params = {"tokens": list(logit_bias), "biases": list(logit_bias.values())}
        steps.append(Processor("logit_bias", params))
    if repetition != 1.0:
        steps.append(Processor("repetition_penalty", {"penalty": repetition}))
    if presence:
        steps.append(Processor("presence_penalty", {"penalty": presence}))
    if frequency:
        steps.append(Processor("frequency_penalty", {"penalty": frequency}))
    return steps


__all__ = ["greedy", "temperature"]
