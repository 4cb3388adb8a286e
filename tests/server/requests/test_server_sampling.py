"""From request fields and model defaults to processors, in order."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.decoding import Processor, SamplerSpec
from quire.core.errors import InvalidArgument
from quire.server.requests.sampling import sampler_of
from quire.server.schemas.generation import SamplingFields
from quire.testing import FakeTokenizer


def sampler(defaults: dict[str, Any] | None = None, **fields: Any) -> SamplerSpec:
    return sampler_of(SamplingFields.model_validate(fields), defaults or {}, 100, TOKENIZER)


TOKENIZER = FakeTokenizer()


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
        "top_k",
        "temperature",
        "min_p",
        "top_p",
    ]
    assert spec.processors[0] == Processor("logit_bias", {"tokens": [7, 3], "biases": [-100, 1.5]})
    assert (spec.greedy, spec.seed) == (False, 4)


def test_a_vanishing_temperature_is_greedy() -> None:
    assert sampler(temperature=1e-300) == SamplerSpec(greedy=True)


def test_defaults_come_from_the_model_and_requests_win() -> None:
    defaults = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.2}
    assert names(sampler(defaults)) == ["repetition_penalty", "top_k", "temperature", "top_p"]
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


def test_the_order_of_the_rest() -> None:
    spec = sampler(
        temperature=0.5,
        typical_p=0.5,
        top_p=0.4,
        dry_multiplier=0.8,
        repetition_penalty=1.1,
        allowed_token_ids=[1, 2],
        bad_words=["a"],
        logit_bias={"7": 1},
        processors=[{"name": "mine", "params": {"size": 2}}, {"name": "yours"}],
    )
    assert names(spec) == [
        "logit_bias",
        "allowed_tokens",
        "bad_words",
        "repetition_penalty",
        "dry",
        "mine",
        "yours",
        "temperature",
        "top_p",
        "typical",
    ]
    assert spec.processors[5] == Processor("mine", {"size": 2})


def test_bad_words_are_words_behind_a_space_too() -> None:
    """As vLLM reads them: with a space only where that is one more spelling of the same length."""
    (words,) = sampler(bad_words=["ab", " c"], temperature=0).processors
    encoded = [TOKENIZER.encode(text, special=False) for text in ("ab", "c")]
    assert words == Processor("bad_words", {"tokens": encoded})
    merging = MergingTokenizer()
    spec = sampler_of(SamplingFields(bad_words=["ab"], temperature=0), {}, 500, merging)
    assert spec.processors[0].params["tokens"] == [[97, 98], [300, 98]]


class MergingTokenizer(FakeTokenizer):
    """A space and an "a" are one token."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        merged = text.startswith(" a")
        return [300] * merged + super().encode(text[2 * merged :], special=special)


def test_dry_breaks_at_the_last_token_of_each_breaker() -> None:
    (dry,) = sampler(dry_multiplier=0.8, temperature=0).processors
    assert dry.params == {"multiplier": 0.8, "breakers": sorted(map(ord, '\n:"*'))}
    (dry,) = sampler(
        dry_multiplier=1,
        dry_base=1.5,
        dry_allowed_length=3,
        dry_range=512,
        dry_sequence_breakers=["ab", "b"],
        temperature=0,
    ).processors
    assert dry.params == {
        "multiplier": 1,
        "breakers": [ord("b")],
        "base": 1.5,
        "allowed_length": 3,
        "range": 512,
    }
    assert sampler(dry_multiplier=0, dry_base=2, temperature=0) == SamplerSpec(greedy=True)


@pytest.mark.parametrize("value", [{"a": 1}, None, [["a"]], 1 << 70, [{"a": 1}]])
def test_parameters_that_no_processor_can_have_are_refused(value: object) -> None:
    with pytest.raises(InvalidArgument, match="parameters of processor 'mine'"):
        sampler(processors=[{"name": "mine", "params": {"x": value}}])


def test_an_allowed_token_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="token 100, but the model has 100 tokens"):
        sampler(allowed_token_ids=[5, 100])
