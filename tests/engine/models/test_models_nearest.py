"""A refusal names the nearest served family and the remedy."""

from __future__ import annotations

import pytest

from quire.core.errors import UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.encoders.config import read_shape
from quire.engine.models.nearest import _RELATED, nearest, nearest_name
from quire.engine.models.registry import FAMILIES, family_of


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("qwen3_vl", "qwen3"),
        ("qwen3_moe_x", "qwen3_moe"),
        ("llama4", "llama"),
        ("gemma3n", "gemma3"),
        ("Phi4", "phi3"),
        ("deepseek_v3", "qwen3_moe"),
        ("mamba", None),
        ("minicpm9", None),
        ("gpt_neo", "llama"),
        ("qwen9", "qwen2"),
        ("", None),
    ],
)
def test_the_nearest_family(model_type: str, expected: str | None) -> None:
    assert nearest(model_type, FAMILIES) == expected


def test_the_table_names_families_that_are_served_for_those_that_are_not() -> None:
    assert set(_RELATED.values()) <= FAMILIES.keys()
    assert not _RELATED.keys() & FAMILIES.keys()


def test_a_name_that_begins_with_a_served_one_is_nearest_to_the_longest() -> None:
    assert nearest_name("abcdef", ["abc", "abcd", "abcx"]) == "abcd"
    assert nearest_name("abcz", ["abcxyz", "abcx"]) == "abcx"


@pytest.mark.parametrize(
    ("model_type", "architecture", "part"),
    [
        ("qwen3_vl", "Qwen3VLForX", r"Nearest is Qwen3ForCausalLM \(qwen3\)"),
        ("mamba", "MambaForCausalLM", "No served family is near"),
        ("bert", "BertModel", "load it with --encoder"),
        (7, None, "No served family is near"),
    ],
)
def test_a_model_that_is_not_served(model_type: object, architecture: object, part: str) -> None:
    values = {"model_type": model_type, "architectures": [architecture]}
    with pytest.raises(UnsupportedModel, match=part):
        family_of(values, "config.json")


def test_the_list_of_what_is_served_names_each_once() -> None:
    with pytest.raises(UnsupportedModel) as caught:
        family_of({"model_type": "mamba"}, "config.json")
    named = caught.value.message.partition("Built in are ")[2].split(", ")
    assert len(named) == len(set(named)) > 20


@pytest.mark.parametrize(
    ("architecture", "part"),
    [
        ("XLMRobertaXLModel", "nearest is XLMRobertaModel"),
        ("ModernBertForTokenClassification", "nearest is ModernBert"),
        ("LlamaForCausalLM", "load what generates with --model"),
        ("T5EncoderModel", "not served as an encoder. Encoders are"),
    ],
)
def test_an_encoder_that_is_not_served(architecture: str, part: str) -> None:
    with pytest.raises(UnsupportedModel, match=part):
        read_shape(ConfigReader({"architectures": [architecture]}, "config.json"))
