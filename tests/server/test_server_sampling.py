"""From request fields and model defaults to processors, in order."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.decoding import Processor, SamplerSpec
from quire.core.errors import InvalidArgument
from quire.server.sampling import sampler_of
from quire.server.schemas.generation import SamplingFields


def sampler(defaults: dict[str, Any] | None = None, **fields: Any) -> SamplerSpec:
    return sampler_of(SamplingFields.model_validate(fields), defaults or {}, vocab_size=100)


def names(spec: SamplerSpec) -> list[str]:
    return [processor.name for processor in spec.processors]


def test_nothing_asked_and_no_defaults_draws_at_temperature_one() -> None:
    assert sampler() == SamplerSpec(greedy=False)


def test_temperature_zero_is_greedy_and_drops_truncation() -> None:
    assert sampler(temperature=0, top_p=0.5, top_k=3) == SamplerSpec(greedy=True)


def test_the_order_of_processors() -> None:
    spec = sampler(
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        logit_bias={"7": -100, "3": 1.5},
        seed=4,
    )
    assert names(spec) == [
        "logit_bias",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "temperature",
        "min_p",
        "top_k",
        "top_p",
    ]
    assert spec.processors[0] == Processor("logit_bias", {"tokens": [7, 3], "biases": [-100, 1.5]})
    assert (spec.greedy, spec.seed) == (False, 4)


def test_a_vanishing_temperature_is_greedy() -> None:
    assert sampler(temperature=1e-300) == SamplerSpec(greedy=True)


def test_defaults_come_from_the_model_and_requests_win() -> None:
    defaults = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.2}
    assert names(sampler(defaults)) == ["repetition_penalty", "temperature", "top_k", "top_p"]
    spec = sampler(defaults, temperature=1, top_k=-1, top_p=1, repetition_penalty=1)
    assert spec == SamplerSpec(greedy=False)


def test_a_greedy_model_is_greedy_unless_the_request_has_a_temperature() -> None:
    defaults = {"do_sample": False, "temperature": 0.6, "top_k": 20}
    assert sampler(defaults).greedy
    assert sampler(defaults, temperature=1) == SamplerSpec(greedy=False)


@pytest.mark.parametrize("seed", [-1, -(1 << 63) + 1, (1 << 63) - 1])
def test_seeds_fold_into_62_bits(seed: int) -> None:
    found = sampler(seed=seed).seed
    assert found is not None
    assert 0 <= found < 1 << 62
    assert found == sampler(seed=seed).seed


def test_a_bias_for_a_token_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="token 100, but the model has 100 tokens"):
        sampler(logit_bias={"100": 1})
