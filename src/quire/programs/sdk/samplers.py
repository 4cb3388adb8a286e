"""Samplers, by their usual names.

Processors are applied in the standard order, which HTTP requests use too: bias, allowed and bad
words, penalties, DRY, processors of packages, top-k, temperature, min-p, top-p, typical.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TypedDict, Unpack

from quire.core.decoding import Params, Processor, SamplerSpec
from quire.core.errors import InvalidArgument


class Shaping(TypedDict, total=False):
    """Changes to the scores before the token is chosen, greedily or at random.

    ``bad_words``: token ids, and lists of ids for words of several tokens. ``dry``: the parameters
    in ``docs/reference/sampling.md``, at least ``multiplier``. ``processors``: any others, by name.
    """

    logit_bias: Mapping[int, float] | None
    allowed_tokens: Sequence[int] | None
    bad_words: Sequence[int | Sequence[int]] | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry: Params | None
    processors: Sequence[Processor]


def greedy(**shaping: Unpack[Shaping]) -> SamplerSpec:
    """Always choose the most likely token (after ``shaping``)."""
    return SamplerSpec(tuple(_shape(shaping)), greedy=True)


def temperature(
    value: float = 1.0,
    *,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    typical_p: float = 1.0,
    seed: int | None = None,
    **shaping: Unpack[Shaping],
) -> SamplerSpec:
    """Draw a token at random; a ``value`` of 0 is ``greedy``. ``top_k`` 0, ``top_p`` 1,
    ``typical_p`` 1 and ``min_p`` 0 exclude no token.

    Raises:
        InvalidArgument: a value out of its range.
    """
    numbers = (value, top_p, top_k, min_p, typical_p)
    if wrong := [one for one in numbers if not isinstance(one, Real)]:
        raise InvalidArgument(
            f"temperature: {wrong[0]!r} is not a number: give e.g. float({wrong[0]!r})"
        )
    if (
        not (0 <= value < math.inf and 0 < top_p <= 1 and 0 < typical_p <= 1)
        or top_k < 0
        or not 0 <= min_p <= 1
    ):
        raise InvalidArgument(
            f"temperature {value}, top_p {top_p}, top_k {top_k}, min_p {min_p}, typical_p "
            f"{typical_p}: choose temperature >= 0, 0 < top_p <= 1, top_k >= 0, 0 <= min_p <= 1, "
            "0 < typical_p <= 1"
        )
    steps = _shape(shaping)
    if value == 0:
        return SamplerSpec(tuple(steps), greedy=True)
    if top_k:
        steps.append(Processor("top_k", {"k": top_k}))
    if value != 1.0:
        steps.append(Processor("temperature", {"temperature": value}))
    if min_p > 0.0:
        steps.append(Processor("min_p", {"p": min_p}))
    if top_p < 1.0:
        steps.append(Processor("top_p", {"p": top_p}))
    if typical_p < 1.0:
        steps.append(Processor("typical", {"p": typical_p}))
    return SamplerSpec(tuple(steps), greedy=False, seed=seed)


def _shape(shaping: Shaping) -> list[Processor]:
    steps: list[Processor] = []
    if bias := shaping.get("logit_bias"):
        steps.append(Processor("logit_bias", {"tokens": list(bias), "biases": list(bias.values())}))
    if allowed := shaping.get("allowed_tokens"):
        steps.append(Processor("allowed_tokens", {"tokens": list(allowed)}))
    if words := shaping.get("bad_words"):
        listed: list[int | float | list[int]] = [
            word if isinstance(word, int) else list(word) for word in words
        ]
        steps.append(Processor("bad_words", {"tokens": listed}))
    if (repetition := shaping.get("repetition_penalty", 1.0)) != 1.0:
        steps.append(Processor("repetition_penalty", {"penalty": repetition}))
    if frequency := shaping.get("frequency_penalty", 0.0):
        steps.append(Processor("frequency_penalty", {"penalty": frequency}))
    if presence := shaping.get("presence_penalty", 0.0):
        steps.append(Processor("presence_penalty", {"penalty": presence}))
    if dry := shaping.get("dry"):
        steps.append(Processor("dry", dry))
    return steps + list(shaping.get("processors", ()))
