"""The SDK's samplers: the order of their steps, and that an engine takes them."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.decoding import Processor, SamplerSpec
from quire.core.errors import InvalidArgument
from quire.engine.sampling.parameters import check_sampler
from quire.programs.sdk import greedy, temperature


def test_the_order_of_steps() -> None:
    sampler = temperature(
        0.5,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        typical_p=0.8,
        seed=3,
        logit_bias={7: 1.5},
        allowed_tokens=[1, 2],
        bad_words=[3, (4, 5)],
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        dry={"multiplier": 0.8},
    )
    assert [one.name for one in sampler.processors] == [
        "logit_bias",
        "allowed_tokens",
        "bad_words",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "dry",
        "top_k",
        "temperature",
        "min_p",
        "top_p",
        "typical",
    ]
    assert sampler.processors[2].params == {"tokens": [3, [4, 5]]}
    check_sampler(sampler, vocab_size=10)


def test_packages_processors_come_before_the_truncation() -> None:
    mine = Processor("mine", {"size": 2})
    sampler = temperature(0.5, top_k=3, processors=[mine])
    assert sampler.processors[0] == mine
    assert greedy(processors=[mine]) == SamplerSpec((mine,))


def test_what_changes_nothing_is_left_out() -> None:
    assert temperature() == SamplerSpec(greedy=False)
    assert temperature(0, top_k=5, top_p=0.5) == greedy() == SamplerSpec()


@pytest.mark.parametrize(
    "fields", [{"top_p": 0}, {"typical_p": 0}, {"min_p": 2}, {"top_k": -1}, {"value": -0.1}]
)
def test_values_out_of_range_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match="choose temperature >= 0"):
        temperature(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["1", None, float("nan"), float("inf"), -0.1])
def test_a_temperature_is_a_number(value: Any) -> None:
    with pytest.raises(InvalidArgument, match="temperature"):
        temperature(value)
