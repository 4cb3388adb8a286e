"""Which parameters a sampler accepts, and how others are refused."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.decoding import Processor, SamplerSpec
from quire.core.errors import InvalidArgument
from quire.engine.sampling.declarations import (
    Flag,
    Number,
    Text,
    Tokens,
    check_params,
    with_defaults,
)
from quire.engine.sampling.parameters import MAX_PROCESSORS, check_sampler

VOCAB = 600


@pytest.mark.parametrize(
    ("processor", "part"),
    [
        (Processor("mystery"), "no processor is named 'mystery'; there are allowed_tokens, bad_"),
        (Processor("temperature", {"temperature": 0}), "above 0"),
        (Processor("temperature", {"temperature": float("nan")}), "above 0"),
        (Processor("temperature", {"temperature": True}), "above 0"),
        (Processor("temperature", {"temperature": 10**400}), "above 0"),
        (Processor("temperature", {}), "takes the parameters"),
        (Processor("temperature", {"temperature": 1, "k": 2}), "takes the parameters"),
        (Processor("top_k", {"k": 0}), "an integer from 1"),
        (Processor("top_k", {"k": 2.5}), "an integer from 1"),
        (Processor("top_p", {"p": 1.5}), "to 1"),
        (Processor("min_p", {"p": -0.1}), "above 0"),
        (Processor("typical", {"p": 0}), "above 0"),
        (Processor("logit_bias", {"tokens": [1], "biases": []}), "one length"),
        (Processor("logit_bias", {"tokens": [VOCAB], "biases": [1]}), "not in the vocabulary"),
        (Processor("logit_bias", {"tokens": [1.5], "biases": [1]}), "not in the vocabulary"),
        (Processor("logit_bias", {"tokens": [1], "biases": [float("inf")]}), "biases has inf"),
        (Processor("bad_words", {"tokens": 5}), "must be a list"),
        (Processor("bad_words", {"tokens": [[]]}), "a word of 0 tokens"),
        (Processor("bad_words", {"tokens": [[1, VOCAB]]}), "not in the vocabulary"),
        (Processor("bad_words", {"tokens": [[1] * 65]}), "a word of 65 tokens"),
        (Processor("allowed_tokens", {"tokens": []}), "a list of 1 to"),
        (Processor("repetition_penalty", {"penalty": 0.0}), "above 0"),
        (Processor("dry", {"base": 2}), r"takes the parameters \['multiplier'\] and may have"),
        (Processor("dry", {"multiplier": 1, "base": 0.5}), "from 1 to"),
        (Processor("dry", {"multiplier": 1, "breakers": [-1]}), "not in the vocabulary"),
    ],
)
def test_bad_parameters_are_refused(processor: Processor, part: str) -> None:
    with pytest.raises(InvalidArgument, match=part):
        check_sampler(SamplerSpec((processor,)), VOCAB)


@pytest.mark.parametrize(
    ("name", "key", "limit", "beyond"),
    [
        ("top_k", "k", 1 << 31, (1 << 31) + 1),
        ("temperature", "temperature", 1e6, 1e6 + 1),
        ("frequency_penalty", "penalty", -1e6, -1e6 - 1),
        ("presence_penalty", "penalty", 1e6, 1e6 + 1),
        ("repetition_penalty", "penalty", 1e6, 1e6 + 1),
        ("dry", "multiplier", 1e6, 1e6 + 1),
        ("dry", "base", 1e3, 1e3 + 1),
        ("dry", "allowed_length", 1 << 20, (1 << 20) + 1),
        ("dry", "range", 1 << 30, (1 << 30) + 1),
        ("bad_words", "tokens", [[1]] * 65_536, [[1]] * 65_537),
        ("bad_words", "tokens", [[1] * 64], [[1] * 65]),
        ("allowed_tokens", "tokens", [1] * 65_536, [1] * 65_537),
    ],
)
def test_every_parameter_has_a_bound(name: str, key: str, limit: Any, beyond: Any) -> None:
    others = {"multiplier": 1.0} if name == "dry" else {}
    check_sampler(SamplerSpec((Processor(name, {**others, key: limit}),)), VOCAB)
    with pytest.raises(InvalidArgument, match=f"{name}.*{key}"):
        check_sampler(SamplerSpec((Processor(name, {**others, key: beyond}),)), VOCAB)


def test_samplers_that_cannot_be_used() -> None:
    with pytest.raises(InvalidArgument, match="without a seed"):
        check_sampler(SamplerSpec(greedy=False), VOCAB)
    warm = Processor("temperature", {"temperature": 2.0})
    check_sampler(SamplerSpec((warm,) * MAX_PROCESSORS), VOCAB)
    with pytest.raises(InvalidArgument, match="at most 32"):
        check_sampler(SamplerSpec((warm,) * (MAX_PROCESSORS + 1)), VOCAB)
    dry = Processor("dry", {"multiplier": 1.0})
    with pytest.raises(InvalidArgument, match="dry' occurs in it twice"):
        check_sampler(SamplerSpec((dry, dry)), VOCAB)


def test_defaults_are_filled_in_and_kinds_told_apart() -> None:
    declared = {
        "size": Number(1, 9, integer=True, default=3),
        "words": Tokens(default=(4, 5)),
        "key": Text(max_length=4),
        "strict": Flag(default=False),
    }
    check_params("mine", declared, {"key": "abcd"}, VOCAB)
    filled = with_defaults(declared, {"key": "abcd", "size": 5})
    assert filled == {"size": 5, "words": [4, 5], "key": "abcd", "strict": False}
    for params, part in [
        ({"key": "abcde"}, "at most 4 characters"),
        ({"key": "a", "strict": 1}, "true or false"),
        ({"size": 2}, r"takes the parameters \['key'\]"),
        ({"key": "a", "words": [True]}, "not in the vocabulary"),
    ]:
        with pytest.raises(InvalidArgument, match=part):
            check_params("mine", declared, params, VOCAB)


@pytest.mark.parametrize(
    "processors",
    [
        [Processor("bad_words", {"tokens": [[1] * 64] * 2049})],
        [Processor("logit_bias", {"tokens": [1] * 50_000, "biases": [1.0] * 50_000})] * 2,
        [Processor("dry", {"multiplier": 1, "breakers": [1] * 200_000})],
    ],
    ids=["words", "several", "one list"],
)
def test_the_lists_of_a_sampler_are_bounded_together(processors: list[Processor]) -> None:
    with pytest.raises(InvalidArgument, match="entries together; at most 131072"):
        check_sampler(SamplerSpec(tuple(processors)), VOCAB)
    check_sampler(SamplerSpec((Processor("bad_words", {"tokens": [[1] * 64] * 2000}),)), VOCAB)
