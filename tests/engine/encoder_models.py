"""Small random encoders on disk, in the formats of transformers and sentence-transformers."""

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
    ModernBertConfig,
    ModernBertForSequenceClassification,
    ModernBertModel,
    MPNetConfig,
    MPNetForSequenceClassification,
    MPNetModel,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    Qwen3Model,
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
    "mpnet": (MPNetConfig, MPNetModel, MPNetForSequenceClassification),
    "modernbert": (ModernBertConfig, ModernBertModel, ModernBertForSequenceClassification),
}
_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_OWN: dict[str, dict[str, Any]] = {
    "bert": {"type_vocab_size": 2, **_DROPOUT},
    "roberta": {"type_vocab_size": 1, **_DROPOUT},
    "xlm-roberta": {"type_vocab_size": 1, **_DROPOUT},
    "mpnet": _DROPOUT,
    "modernbert": {
        "num_hidden_layers": 4,
        "local_attention": 6,
        "bos_token_id": 2,
        "cls_token_id": 2,
        "eos_token_id": 3,
        "sep_token_id": 3,
    },
}
"""The keys of a family's configuration besides the common sizes."""


def make_encoder(
    directory: Path, family: str, *, classifier: bool = False, **changes: Any
) -> PreTrainedModel:
    """Save a random model and its tokenizer; returns the model, which is the reference."""
    config_class, model_class, classifier_class = FAMILIES[family]
    torch.manual_seed(len(family) + classifier)
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 40,
        "pad_token_id": 0,
        "num_labels": 1,
        "initializer_range": 0.5,
    }
    config = config_class(**{**sizes, **_OWN[family], **changes})
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


QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
QWEN_VOCAB = [*QWEN_SPECIAL, "[UNK]", "yes", "no", "system", "user", "assistant", "Query", *WORDS]
_QWEN_MODELS = {
    "embedding": Qwen3Model,
    "reranker": Qwen3ForCausalLM,
    "classifier": Qwen3ForSequenceClassification,
}


def make_qwen3(directory: Path, kind: str, **changes: Any) -> PreTrainedModel:
    """A random Qwen3 that embeds, answers yes or no, or has one class; with its tokenizer."""
    torch.manual_seed(11)
    sizes = {
        "vocab_size": len(QWEN_VOCAB),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "initializer_range": 0.4,
        "pad_token_id": 0,
        "eos_token_id": 0,
        "num_labels": 1,
        "attn_implementation": "eager",
    }
    model: PreTrainedModel = _QWEN_MODELS[kind](Qwen3Config(**{**sizes, **changes})).eval()
    model.save_pretrained(directory)
    if kind == "embedding":  # published as a causal model, without its prefix
        config = json.loads((directory / "config.json").read_text())
        _write(directory / "config.json", {**config, "architectures": ["Qwen3ForCausalLM"]})
    qwen_tokenizer(ends=kind == "embedding").save(str(directory / "tokenizer.json"))
    return model


def qwen_tokenizer(*, ends: bool) -> Tokenizer:
    """``ends``: a text ends with a special token, as Qwen3-Embedding's do."""
    vocab = {word: index for index, word in enumerate(QWEN_VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(QWEN_SPECIAL)
    if ends:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A <|endoftext|>",
            pair="$A $B <|endoftext|>",
            special_tokens=[("<|endoftext|>", 0)],
        )
    return tokenizer
