"""Late interaction equals its definition on transformers' hidden states, in any batch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from encoder_models import add_modules, make_encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn import functional

from quire.core.config import EncoderConfig
from quire.core.encoding import EncodeBatch, EncodeResult
from quire.core.errors import InvalidArgument, PromptTooLong, UnsupportedModel
from quire.core.ids import ModelId
from quire.engine.encoders.encoder import TorchEncoder
from quire.engine.encoders.late_texts import LateInteractionTexts, PairToken
from quire.engine.encoders.text import EncodedText, EncoderTexts, load_texts

QUERY = "the cat sat"
DOCUMENTS = ["a cat sat on the mat", "blue sky", "the dog ran far away", "sat"]


def late(directory: Path) -> TorchEncoder:
    return TorchEncoder(EncoderConfig(str(directory), ModelId("late"), late_interaction=True))


def texts_in(directory: Path) -> LateInteractionTexts:
    return LateInteractionTexts(load_texts(str(directory)))


def batch_of(pairs: list[EncodedText], *owners: int) -> EncodeBatch:
    """``owners``: of each pair."""
    return EncodeBatch(
        owners=np.asarray(owners, np.int32),
        number=0,
        tokens=np.asarray([token for pair in pairs for token in pair.tokens], np.int32),
        types=np.asarray([kind for pair in pairs for kind in pair.types], np.int32),
        lengths=np.asarray([len(pair.tokens) for pair in pairs], np.int32),
    )


@pytest.mark.parametrize("family", ["bert", "mpnet", "modernbert"])
def test_scores_equal_their_definition(family: str, tmp_path: Path) -> None:
    model = make_encoder(tmp_path, family)
    pairs = texts_in(tmp_path).encode_pairs(QUERY, DOCUMENTS)
    scores = late(tmp_path).encode(batch_of(pairs)).rows
    plain = load_texts(str(tmp_path))

    def vectors(text: str) -> torch.Tensor:
        tokens = torch.tensor([plain.encode([text])[0].tokens])
        with torch.no_grad():
            states = model(input_ids=tokens, attention_mask=torch.ones_like(tokens))
        return functional.normalize(states.last_hidden_state[0, 1:-1], dim=-1)  # no [CLS], [SEP]

    expected = [
        (vectors(QUERY) @ vectors(document).T).max(1).values.mean().item() for document in DOCUMENTS
    ]
    np.testing.assert_allclose(scores[:, 0], expected, atol=1e-5)


def test_it_is_listed_as_what_scores_pairs(tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert")
    info = late(tmp_path).info
    assert (info.kind, info.dimensions) == ("cross_encoder", 1)
    assert info.max_tokens == texts_in(tmp_path).max_tokens == 2 * 40
    assert info.num_types == len(PairToken)


Made = tuple[list[EncodedText], TorchEncoder]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    directory = tmp_path_factory.mktemp("late")
    make_encoder(directory, "bert")
    return texts_in(directory).encode_pairs(QUERY, DOCUMENTS), late(directory)


@settings(max_examples=25)
@given(st.permutations(range(len(DOCUMENTS))), st.integers(1, len(DOCUMENTS)))
def test_a_pair_scores_the_same_in_any_batch(made: Made, order: list[int], num: int) -> None:
    pairs, encoder = made
    alone = [encoder.encode(batch_of([pairs[index]])).rows[0, 0] for index in order[:num]]
    together = encoder.encode(batch_of([pairs[index] for index in order[:num]])).rows[:, 0]
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_a_query_of_many_pairs_is_encoded_once(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, encoder = made
    seen: list[int] = []
    body = encoder._body

    def counted(tokens: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        seen.append(len(tokens))
        return body(tokens, *rest)

    monkeypatch.setattr(encoder, "_body", counted)
    encoder.encode(batch_of(pairs))
    assert sum(seen) == 1 + len(DOCUMENTS)


def test_pairs_have_the_special_tokens_and_prompts_of_each_text(tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert")
    settings_file = tmp_path / "config_sentence_transformers.json"
    prompts = {"query": "the ", "passage": "a ", "other": "dog "}
    settings_file.write_text(json.dumps({"prompts": prompts, "default_prompt_name": "other"}))
    (pair,) = texts_in(tmp_path).encode_pairs("cat", ["mat"])
    plain = load_texts(str(tmp_path))
    plain.prompt = ""
    query, document = plain.encode(["the cat", "a mat"])
    assert pair.tokens == query.tokens + document.tokens
    assert pair.types == (2, 0, 0, 2, 3, 1, 1, 3)


def test_each_text_has_the_models_length(tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert")
    texts = texts_in(tmp_path)
    long = "cat " * 50
    with pytest.raises(PromptTooLong, match="the query has 52 tokens, but the model reads 40"):
        texts.encode_pairs(long, ["mat"], max_tokens=80)
    with pytest.raises(PromptTooLong, match="document 1 has 52 tokens"):
        texts.encode_pairs("mat", ["cat", long])
    (_, cut) = texts.encode_pairs("mat", ["cat", long], max_tokens=80)
    assert len(cut.tokens) == 3 + 40
    assert cut.types[-1] == PairToken.DOCUMENT_SPECIAL
    (shorter,) = texts.encode_pairs("mat", [long], max_tokens=20)
    assert len(shorter.tokens) == 20
    assert late(tmp_path).encode(batch_of([cut])).rows.shape == (1, 1)


def test_a_request_is_bounded_before_its_pairs_are_made(tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert", max_position_embeddings=4000)
    with pytest.raises(PromptTooLong, match="the model reads 2048 of each text"):
        texts_in(tmp_path).encode_pairs("cat " * 2100, ["sky"] * 2048)


def test_a_text_of_special_tokens_alone_is_compared_by_them(tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert")
    (pair,) = texts_in(tmp_path).encode_pairs(" ", ["cat"])
    assert pair.types == (2, 2, 3, 1, 3)
    assert np.isfinite(late(tmp_path).encode(batch_of([pair])).rows).all()


@pytest.mark.parametrize("types", [(0, 0, 0), (1, 1, 1), (1, 0, 1), (0, 1, 0)])
def test_what_is_no_pair_is_refused(made: Made, types: tuple[int, ...]) -> None:
    _, encoder = made
    with pytest.raises(InvalidArgument, match="a query followed by a document"):
        encoder.encode(batch_of([EncodedText((2, 5, 3), types)]))


def test_a_side_that_is_too_long_is_refused(made: Made) -> None:
    _, encoder = made
    pair = EncodedText((5,) * 50, (0, *[1] * 49))
    with pytest.raises(InvalidArgument, match="a sequence of 49 tokens; the model reads 40"):
        encoder.encode(batch_of([pair]))


def test_an_instruction_is_refused(tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert")
    with pytest.raises(InvalidArgument, match="instruction is for models whose pairs carry one"):
        texts_in(tmp_path).encode_pairs("cat", ["mat"], instruction="nearest")


def test_models_that_compare_otherwise_are_refused(tmp_path: Path) -> None:
    scorer, projecting = tmp_path / "scorer", tmp_path / "projecting"
    make_encoder(scorer, "bert", classifier=True)
    with pytest.raises(UnsupportedModel, match="scores pairs itself"):
        late(scorer)
    make_encoder(projecting, "bert")
    modules = [
        {"type": "a.Transformer", "path": ""},
        {"type": "pylate.models.Dense.Dense", "path": "1"},
    ]
    (projecting / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UnsupportedModel, match="projects the vector of each token"):
        late(projecting)


def test_modules_that_pool_do_not_matter(tmp_path: Path) -> None:
    make_encoder(tmp_path, "bert")
    pairs = texts_in(tmp_path).encode_pairs(QUERY, DOCUMENTS)
    without = late(tmp_path).encode(batch_of(pairs)).rows
    add_modules(tmp_path, pooling={"pooling_mode_max_tokens": True})
    np.testing.assert_array_equal(late(tmp_path).encode(batch_of(pairs)).rows, without)


# -- vectors of tokens that are kept ---------------------------------------------------------------


class Both:
    """One model that embeds and scores pairs, and counts the texts that it computes."""

    def __init__(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int = 1 << 20
    ) -> None:
        self.encoder = TorchEncoder(
            EncoderConfig(
                str(directory), ModelId("both"), also_scores=True, token_cache_bytes=max_bytes
            )
        )
        self.texts = load_texts(str(directory))
        self.num_computed = 0
        body = self.encoder._body

        def counted(tokens: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
            self.num_computed += len(tokens)
            return body(tokens, *rest)

        monkeypatch.setattr(self.encoder, "_body", counted)

    def embed(self, texts: list[str], *owners: int) -> EncodeResult:
        return self.encoder.encode(batch_of(self.texts.encode(texts), *owners))

    def rank(self, query: str, documents: list[str], *owners: int) -> EncodeResult:
        pairs = LateInteractionTexts(self.texts).encode_pairs(query, documents)
        return self.encoder.encode(batch_of(pairs, *owners))


@pytest.mark.parametrize("family", ["bert", "mpnet", "modernbert"])
def test_one_process_embeds_and_scores_as_two_do(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_encoder(tmp_path, family)
    both = Both(tmp_path, monkeypatch)
    assert (both.encoder.info.kind, both.encoder.info.num_types) == ("embedding", len(PairToken))
    plain = TorchEncoder(EncoderConfig(str(tmp_path), ModelId("plain")))
    alone = plain.encode(batch_of(both.texts.encode(DOCUMENTS))).rows
    pairs = LateInteractionTexts(both.texts).encode_pairs(QUERY, DOCUMENTS)
    scores = late(tmp_path).encode(batch_of(pairs)).rows
    for _ in range(2):  # computed, then kept
        embedded = both.embed(DOCUMENTS, *[0] * len(DOCUMENTS)).rows
        np.testing.assert_allclose(embedded, alone, atol=1e-5)
        ranked = both.rank(QUERY, DOCUMENTS, *[0] * len(DOCUMENTS)).rows
        np.testing.assert_allclose(ranked[:, :1], scores, atol=1e-5)


def test_texts_and_pairs_may_share_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_encoder(tmp_path, "bert")
    both = Both(tmp_path, monkeypatch)
    (pair,) = LateInteractionTexts(both.texts).encode_pairs(QUERY, DOCUMENTS[:1])
    (one,) = both.texts.encode(DOCUMENTS[:1])
    rows = both.encoder.encode(batch_of([one, pair, one], 0, 0, 0)).rows
    np.testing.assert_array_equal(rows[0], rows[2])
    assert rows[1, 0] == both.rank(QUERY, DOCUMENTS[:1], 0).rows[0, 0]
    assert not rows[1, 1:].any()
    assert both.num_computed == 2


def test_what_was_embedded_is_ranked_without_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_encoder(tmp_path, "bert")
    both = Both(tmp_path, monkeypatch)
    both.embed([QUERY, *DOCUMENTS], *[3] * 5)
    assert both.num_computed == 5
    ranked = both.rank(QUERY, DOCUMENTS, *[3] * 4)
    assert both.num_computed == 5
    lengths = [len(one.tokens) for one in both.texts.encode([QUERY, *DOCUMENTS])]
    assert ranked.num_reused_tokens == sum(lengths)
    both.rank("the dog", DOCUMENTS, *[3] * 4)
    assert both.num_computed == 6, "another question computes itself alone"


def test_nobody_finds_what_another_one_had_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_encoder(tmp_path, "bert")
    both = Both(tmp_path, monkeypatch)
    both.embed(DOCUMENTS, 1, 1, 1, 1)
    assert both.embed(DOCUMENTS, 1, 2, 1, 2).num_reused_tokens > 0
    assert both.num_computed == 4 + 2
    assert both.embed(DOCUMENTS).num_reused_tokens == 0, "of no owner"
    assert both.embed(DOCUMENTS).num_reused_tokens == 0
    assert both.num_computed == 6 + 8


def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_encoder(tmp_path, "bert")
    both = Both(tmp_path, monkeypatch)
    of_one = both.embed(DOCUMENTS[:1], 0).cache_bytes
    assert of_one > 0
    small = Both(tmp_path, monkeypatch, of_one)
    assert 0 < small.embed(DOCUMENTS, 0, 0, 0, 0).cache_bytes <= of_one
    nothing = Both(tmp_path, monkeypatch, 0)
    assert nothing.embed(DOCUMENTS, 0, 0, 0, 0).cache_bytes == 0
    assert nothing.embed(DOCUMENTS, 0, 0, 0, 0).num_reused_tokens == 0


def test_owners_are_of_all_sequences_or_of_none(made: Made) -> None:
    pairs, encoder = made
    with pytest.raises(InvalidArgument, match="1 owners of 4 sequences"):
        encoder.encode(batch_of(pairs, 7))


@pytest.mark.parametrize("max_tokens", [None, 5])
def test_a_text_without_a_token_is_refused_before_it_shares_a_batch(
    max_tokens: int | None,
) -> None:
    """The model's tokenizer adds none."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "cat": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    texts = LateInteractionTexts(EncoderTexts(tokenizer, 16, ""))
    with pytest.raises(InvalidArgument, match="the query has no token"):
        texts.encode_pairs(" ", ["cat"], max_tokens)
    with pytest.raises(InvalidArgument, match="document 1 has no token"):
        texts.encode_pairs("cat", ["cat", " "], max_tokens)
    (pair,) = texts.encode_pairs("cat", ["cat"], max_tokens)
    assert pair.tokens == (1, 1)
