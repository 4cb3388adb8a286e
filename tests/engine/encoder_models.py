"""Small random encoders on disk, as transformers and sentence-transformers lay them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "far", "away", "blue", "sky"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
VOCAB_SIZE = len(SPECIAL) + len(WORDS)

FAMILIES: dict[str, tuple[Any, Any, Any]] = {
    "bert": (BertConfig, BertModel, BertForSequenceClassification),
    "roberta": (RobertaConfig, RobertaModel, RobertaForSequenceClassification),
    "xlm-roberta": (XLMRobertaConfig, XLMRobertaModel, XLMRobertaForSequenceClassification),
}


def make_encoder(directory: Path, family: str, *, classifier: bool = False) -> PreTrainedModel:
    """Save a random model and its tokenizer; returns the model, which is the reference."""
    config_class, model_class, classifier_class = FAMILIES[family]
    torch.manual_seed(len(family) + classifier)
    config = config_class(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=40,
        type_vocab_size=2 if family == "bert" else 1,
        pad_token_id=0,
        num_labels=1,
        initializer_range=0.5,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model: PreTrainedModel = (classifier_class if classifier else model_class)(config).eval()
    model.save_pretrained(directory)
    make_tokenizer(type_of_second=1 if family == "bert" else 0).save(
        str(directory / "tokenizer.json")
    )
    return model


def make_tokenizer(type_of_second: int = 1) -> Tokenizer:
    vocab = {word: index for index, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(SPECIAL)
    second = type_of_second
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP] $B:{second} [SEP]:{second}",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def add_modules(directory: Path, pooling: dict[str, Any], *, dense: int | None = None) -> None:
    """The files of sentence-transformers: pooling, a dense layer of ``dense`` values, a norm."""
    listed = [("Transformer", ""), ("Pooling", "1_Pooling")]
    _write(directory / "1_Pooling" / "config.json", pooling)
    if dense is not None:
        listed.append(("Dense", "2_Dense"))
        torch.manual_seed(5)
        _write(
            directory / "2_Dense" / "config.json",
            {
                "in_features": 32,
                "out_features": dense,
                "bias": True,
                "activation_function": "torch.nn.modules.activation.Tanh",
            },
        )
        weights = {"linear.weight": torch.randn(dense, 32), "linear.bias": torch.randn(dense)}
        save_file(weights, str(directory / "2_Dense" / "model.safetensors"))
    listed.append(("Normalize", "3_Normalize"))
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, (kind, path) in enumerate(listed)
    ]
    _write(directory / "modules.json", modules)


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
