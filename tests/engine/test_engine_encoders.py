"""Encoders equal transformers, in any batch; heads equal their definitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder_models import FAMILIES, VOCAB_SIZE, add_modules, make_encoder, make_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from quire.core.config import EncoderConfig
from quire.core.encoding import EncodeBatch
from quire.core.errors import InvalidArgument, ModelError, ModelFormatError, PromptTooLong
from quire.core.ids import ModelId
from quire.engine.checkpoint.config_accounting import account
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.encoders.encoder import TorchEncoder, rows_of
from quire.engine.encoders.known_keys import POOLING
from quire.engine.encoders.modules import read_pooling
from quire.engine.encoders.text import EncoderTexts, load_texts

SEQUENCES = [[2, 5, 6, 7, 3], [2, 3], [2, *range(4, 16), 4, 5, 6, 3], [2, 9, 3], [2, 8, 8, 3]]


def read_texts(directory: Path) -> EncoderTexts:
    return load_texts(str(directory))


def load(directory: Path, **fields: Any) -> TorchEncoder:
    return TorchEncoder(EncoderConfig(source=str(directory), name=ModelId("e"), **fields))


def hidden(model: Any, tokens: list[int], types: list[int] | None = None) -> torch.Tensor:
    """The last hidden states of one sequence, by transformers."""
    with torch.no_grad():
        states: torch.Tensor = model(**inputs(model, tokens, types)).last_hidden_state
    return states[0]


def inputs(model: Any, tokens: list[int], types: list[int] | None) -> dict[str, torch.Tensor]:
    ids = torch.tensor([tokens])
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.config.model_type in ("bert", "roberta", "xlm-roberta"):
        given["token_type_ids"] = torch.tensor([types or [0] * len(tokens)])
    return given


@pytest.mark.parametrize("family", FAMILIES)
def test_mean_pooling_equals_transformers(family: str, tmp_path: Path) -> None:
    model = make_encoder(tmp_path, family)
    rows = rows_of(load(tmp_path), SEQUENCES)
    expected = torch.stack([hidden(model, tokens).mean(0) for tokens in SEQUENCES])
    np.testing.assert_allclose(rows, expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("family", ["mpnet", "modernbert"])
def test_far_tokens_are_seen_as_transformers_sees_them(family: str, tmp_path: Path) -> None:
    """Distances in all buckets, and beyond every window."""
    model = make_encoder(tmp_path, family, max_position_embeddings=300)
    tokens = [2, *np.random.default_rng(0).integers(4, VOCAB_SIZE, 250).tolist(), 3]
    expected = hidden(model, tokens).mean(0)
    together = rows_of(load(tmp_path), [tokens, tokens[:200]])
    np.testing.assert_allclose(together[0], expected.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"classifier_pooling": "mean"},
        {"norm_bias": True, "mlp_bias": True, "attention_bias": True, "classifier_bias": True},
        {
            "layer_types": ["sliding_attention"] * 4,
            "rope_parameters": {
                "sliding_attention": {"rope_theta": 50.0},
                "full_attention": {"rope_theta": 90.0},
            },
        },
    ],
)
def test_variants_of_modernbert(changes: dict[str, Any], tmp_path: Path) -> None:
    model = make_encoder(tmp_path, "modernbert", classifier=True, **changes)
    with torch.no_grad():
        logits = [model(**inputs(model, tokens, None)).logits[0, 0] for tokens in SEQUENCES]
    expected = torch.stack(logits).sigmoid().numpy()
    np.testing.assert_allclose(rows_of(load(tmp_path), SEQUENCES)[:, 0], expected, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_equal_transformers(family: str, tmp_path: Path) -> None:
    model = make_encoder(tmp_path, family, classifier=True)
    encoder = load(tmp_path)
    assert encoder.info.kind == "cross_encoder"
    second = 1 if family == "bert" else 0
    tokens = [2, 5, 6, 3, 9, 10, 3]
    types = [0] * 4 + [second] * 3
    batch = EncodeBatch(
        number=1,
        tokens=np.asarray(tokens * 2, np.int32),
        types=np.asarray(types * 2, np.int32),
        lengths=np.asarray([7, 7], np.int32),
    )
    with torch.no_grad():
        logit = model(**inputs(model, tokens, types)).logits
    expected = float(torch.sigmoid(logit))
    np.testing.assert_allclose(encoder.encode(batch).rows, [[expected]] * 2, atol=1e-5)
    config = json.loads((tmp_path / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    np.testing.assert_allclose(load(tmp_path).encode(batch).rows, [[float(logit)]] * 2, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("cls_token", lambda h: h[0]),
        ("lasttoken", lambda h: h[-1]),
        ("max_tokens", lambda h: h.amax(0)),
        ("mean_tokens", lambda h: h.mean(0)),
        ("mean_sqrt_len_tokens", lambda h: h.sum(0) / len(h) ** 0.5),
    ],
)
def test_modules_of_a_sentence_transformer(mode: str, expected: Any, tmp_path: Path) -> None:
    """Pooling, a dense layer and a norm, each by its definition."""
    model = make_encoder(tmp_path, "bert")
    add_modules(tmp_path, {f"pooling_mode_{mode}": True, "pooling_mode_x": False}, dense=6)
    encoder = load(tmp_path)
    dense = load_file(str(tmp_path / "2_Dense" / "model.safetensors"))
    for tokens, row in zip(SEQUENCES, rows_of(encoder, SEQUENCES), strict=True):
        pooled = expected(hidden(model, tokens))
        value = torch.tanh(dense["linear.weight"] @ pooled + dense["linear.bias"])
        np.testing.assert_allclose(row, (value / value.norm()).numpy(), atol=1e-5)
    assert encoder.info.dimensions == 6


@pytest.mark.parametrize(
    ("pooling", "order"),
    [
        ({"pooling_mode": ["lasttoken", "mean_sqrt_len_tokens"]}, ("last", "root")),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, ("root",)),
        ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True}, ("cls",)),
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
            ("max", "mean"),
        ),
    ],
)
def test_several_ways_of_pooling_are_joined(
    pooling: dict[str, Any], order: tuple[str, ...], tmp_path: Path
) -> None:
    """Newer files name the modes in a list, older ones enable each by a key, in the library's
    order."""
    model = make_encoder(tmp_path, "bert")
    add_modules(tmp_path, pooling)
    for tokens, row in zip(SEQUENCES, rows_of(load(tmp_path), SEQUENCES), strict=True):
        states = hidden(model, tokens)
        ways = {
            "cls": states[0],
            "last": states[-1],
            "max": states.amax(0),
            "mean": states.mean(0),
            "root": states.sum(0) / len(states) ** 0.5,
        }
        value = torch.cat([ways[one] for one in order])
        np.testing.assert_allclose(row, (value / value.norm()).numpy(), atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "mpnet", "modernbert"])
def test_a_sequences_row_does_not_depend_on_its_batch(family: str, tmp_path: Path) -> None:
    make_encoder(tmp_path, family)
    encoder = load(tmp_path)
    together = rows_of(encoder, SEQUENCES * 4)
    alone = np.concatenate([rows_of(encoder, [tokens]) for tokens in SEQUENCES] * 4)
    np.testing.assert_allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16"])
@pytest.mark.parametrize("classifier", [False, True])
def test_a_narrow_type_is_near(dtype: str, classifier: bool, tmp_path: Path) -> None:
    make_encoder(tmp_path, "roberta", classifier=classifier)
    exact, narrow = (
        rows_of(load(tmp_path), SEQUENCES),
        rows_of(load(tmp_path, dtype=dtype), SEQUENCES),
    )
    np.testing.assert_allclose(narrow, exact, atol=0.1)
    assert not np.array_equal(narrow, exact)


@pytest.mark.parametrize(
    ("tokens", "lengths", "types"),
    [
        ([1, 2], [3], [0, 0]),
        ([1, 2], [2, 0], [0, 0]),
        ([], [], []),
        ([VOCAB_SIZE], [1], [0]),
        ([-1], [1], [0]),
        ([1], [1], [2]),
        ([1] * 41, [41], [0] * 41),
    ],
)
def test_batches_that_the_model_cannot_run(
    tokens: list[int], lengths: list[int], types: list[int], tmp_path: Path
) -> None:
    make_encoder(tmp_path, "bert")
    batch = EncodeBatch(
        number=1,
        tokens=np.asarray(tokens, np.int32),
        types=np.asarray(types, np.int32),
        lengths=np.asarray(lengths, np.int32),
    )
    with pytest.raises(InvalidArgument):
        load(tmp_path).encode(batch)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"architectures": None}, "architecture"),
        ({"position_embedding_type": "relative_key"}, "absolute"),
        ({"hidden_act": "swish"}, "swish"),
        ({"hidden_size": 31}, "heads"),
        ({"num_hidden_layers": 3}, "missing"),
        ({"num_hidden_layers": 1}, "unexpected"),
        ({"vocab_size": 10**9}, "vocab_size"),
    ],
)
def test_directories_that_cannot_be_served(
    changes: dict[str, Any], word: str, tmp_path: Path
) -> None:
    make_encoder(tmp_path, "bert")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ModelError, match=word):
        load(tmp_path)


SILENT: dict[str, dict[str, Any]] = {
    "config.json": {},
    "1_Pooling/config.json": {"pooling_mode_cls_token": True, "word_embedding_dimension": 32},
    "sentence_bert_config.json": {"max_seq_length": 16, "do_lower_case": False},
    "config_sentence_transformers.json": {
        "__version__": {"pytorch": "2"},
        "prompts": {},
        "default_prompt_name": None,
    },
}
"""Files of a directory, with keys to add to their content."""


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.parametrize("family", ["bert", "modernbert", "mpnet"])
def test_an_unknown_key_is_named(
    name: str, family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_encoder(tmp_path, family)
    add_modules(tmp_path, {"pooling_mode_cls_token": True, "embedding_dimension": 32}, dense=4)
    for other, values in SILENT.items():
        if values:
            (tmp_path / other).write_text(json.dumps(values))
    load(tmp_path)
    load_texts(str(tmp_path))
    assert "not known" not in caplog.text
    values = json.loads((tmp_path / name).read_text())
    (tmp_path / name).write_text(json.dumps({**values, "score_temperature": 3}))
    load(tmp_path)
    load_texts(str(tmp_path))
    assert "score_temperature = 3" in caplog.text


@given(
    name=st.text(min_size=1, max_size=20).filter(
        lambda name: (
            (not name.startswith("pooling_mode") and name != "include_prompt")
            and not POOLING.is_harmless(name)
        )
    ),
    value=st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers()),
)
def test_an_unknown_key_of_pooling_is_never_silent(name: str, value: Any) -> None:
    reader = ConfigReader({"pooling_mode": "mean", "embedding_dimension": 8, name: value}, "p")
    assert read_pooling(reader) == ("mean_tokens",)
    (warning,) = account(reader, POOLING)
    assert name in warning


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("config.json", {"is_causal": True}, "is_causal"),
        ("config.json", {"quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ("sentence_bert_config.json", {"query_length": 32}, "query_length"),
        ("sentence_bert_config.json", {"processing_kwargs": {"text": {"padding": 1}}}, "prepared"),
        ("config_sentence_transformers.json", {"truncate_dim": 8}, "truncate_dim"),
        ("2_Dense/config.json", {"module_output_name": "token_embeddings"}, "another place"),
    ],
)
def test_keys_that_change_rows_are_refused(
    name: str, changes: dict[str, Any], word: str, tmp_path: Path
) -> None:
    make_encoder(tmp_path, "bert")
    add_modules(tmp_path, {"pooling_mode_cls_token": True}, dense=4)
    path = tmp_path / name
    values = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**values, **changes}))
    start: Any = read_texts if name.endswith("transformers.json") or "bert_" in name else load
    with pytest.raises(ModelError, match=word):
        start(tmp_path)


@pytest.mark.parametrize(
    ("pooling", "word"),
    [
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        ({"pooling_mode": ["mean", "weightedmean"]}, "weightedmean"),
        ({"pooling_mode": []}, "nothing"),
        ({}, "nothing"),
        ({"pooling_mode_cls_token": True, "include_prompt": False}, "prompt"),
    ],
)
def test_heads_that_cannot_be_served(pooling: dict[str, Any], word: str, tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert")
    add_modules(tmp_path, pooling)
    with pytest.raises(ModelError, match=word):
        load(tmp_path)


def test_modules_stay_inside_their_directory(tmp_path: Path) -> None:
    make_encoder(tmp_path / "m", "bert")
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "../elsewhere"}]
    (tmp_path / "m" / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match=r"'../elsewhere' outside its directory"):
        load(tmp_path / "m")


@pytest.mark.parametrize(
    ("text", "message"),
    [("[", "is not valid JSON .*: download"), ('{"a": 1}', "is not a list of modules: download")],
)
def test_damaged_modules_are_named_with_a_remedy(text: str, message: str, tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert")
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(ModelFormatError, match=f"modules.json {message}"):
        load(tmp_path)


# -- texts -----------------------------------------------------------------------------------------


def test_texts_stand_between_their_special_tokens(tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert")
    texts = load_texts(str(tmp_path))
    one, two = texts.encode(["The cat", "[SEP] sky"])
    assert one.tokens == (2, 4, 6, 3)
    assert two.tokens[0] == 2
    assert two.tokens.count(3) == 1, "a text cannot write a special token"
    (pair,) = texts.encode_pairs("cat", ["blue sky"])
    assert pair.tokens == (2, 6, 3, 14, 15, 3)
    assert pair.types == (0, 0, 0, 1, 1, 1)
    assert texts.max_tokens == 40


def test_texts_are_cut_at_their_end_and_keep_the_mark(tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert")
    texts = load_texts(str(tmp_path))
    (long,) = texts.encode(["cat " * 20])
    assert texts.cut(long, 5).tokens == (2, 6, 6, 6, 3)
    assert texts.cut(long, 100) is long
    (pair,) = texts.encode_pairs("cat", ["sky " * 20], max_tokens=6)
    assert pair.tokens == (2, 6, 3, 15, 15, 3)
    (whole,) = texts.encode_pairs("cat " * 10, ["sky"], max_tokens=5)
    assert len(whole.tokens) == 14, "the first text is never cut"


def test_many_pairs_share_a_bound_of_tokens() -> None:
    """The first text is repeated in each pair."""
    texts = EncoderTexts(make_tokenizer(), 10_000, "")
    assert len(texts.encode_pairs("cat " * 3000, ["sky"] * 2)) == 2
    with pytest.raises(PromptTooLong, match="reads 2048 of each of 2048 pairs"):
        texts.encode_pairs("cat " * 3000, ["sky"] * 2048)


def test_lower_case_is_the_directorys_word(tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert")
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**tokenizer, "normalizer": None}))
    assert load_texts(str(tmp_path)).encode(["SKY"])[0].tokens == (2, 1, 3)
    (tmp_path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    assert load_texts(str(tmp_path)).encode(["SKY"])[0].tokens == (2, 15, 3)


@pytest.mark.parametrize("second_type", [0, 1])
def test_pairs_are_those_that_the_tokenizer_makes_of_both_texts(second_type: int) -> None:
    tokenizer = make_tokenizer(second_type)
    seconds = ["blue sky", "", "the dog ran far away", "[SEP]"]
    found = EncoderTexts(tokenizer, 40, "").encode_pairs("The cat", seconds)
    wanted = tokenizer.encode_batch([("The cat", second) for second in seconds])
    assert [(one.tokens, one.types) for one in found] == [
        (tuple(one.ids), tuple(one.type_ids)) for one in wanted
    ]


def test_a_first_text_that_fits_no_pair_is_refused_before_it_is_joined_with_each() -> None:
    texts = EncoderTexts(make_tokenizer(), 40, "")
    with pytest.raises(PromptTooLong, match="38 tokens, which makes 41"):
        texts.encode_pairs("cat " * 38, ["sky"] * 2048)
    (pair,) = texts.encode_pairs("cat " * 37, [""])
    assert len(pair.tokens) == 40


def test_limits_and_prompts_of_the_directory(tmp_path: Path) -> None:
    make_encoder(tmp_path, "roberta")
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    (tmp_path / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "blue "}, "default_prompt_name": "query"})
    )
    texts = load_texts(str(tmp_path))
    assert texts.max_tokens == 8
    assert texts.encode(["sky"])[0].tokens == (2, 14, 15, 3)
    (tmp_path / "sentence_bert_config.json").write_text('{"transformer_task": "x"}')
    for length, expected in [(9, 9), (10**30, 39), (1e30, 39)]:  # the key of newer files
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": length}))
        assert load_texts(str(tmp_path)).max_tokens == expected
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="tokenizer"):
        load_texts(str(tmp_path))
