"""Small random checkpoints, made with transformers, for comparing the engine with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB_SIZE = 300
EOS = 1

_CORPUS = ["the quick brown fox jumps over the lazy dog", '{"name": "value", "count": 12}'] * 4
_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": EOS,
    "pad_token_id": 2,
}


@dataclass(frozen=True)
class Recipe:
    """One architecture variant."""

    config: type[Any] = LlamaConfig
    model: type[Any] = LlamaForCausalLM
    changes: dict[str, Any] = field(default_factory=dict)


def _rope(**values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, **values}}


RECIPES: dict[str, Recipe] = {
    "llama": Recipe(),
    "llama-mha-tied": Recipe(changes={"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama-mqa-head-dim": Recipe(changes={"num_key_value_heads": 1, "head_dim": 12}),
    "llama-biases": Recipe(changes={"attention_bias": True, "mlp_bias": True}),
    "llama-rope-llama3": Recipe(
        changes=_rope(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        )
    ),
    "llama-rope-linear": Recipe(changes=_rope(rope_type="linear", factor=4.0)),
    "llama-rope-yarn": Recipe(
        changes=_rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)
    ),
    "qwen2": Recipe(Qwen2Config, Qwen2ForCausalLM),
    "qwen2-tied": Recipe(Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}),
    "qwen3": Recipe(Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16}),
}


def byte_level_tokenizer() -> Tokenizer:
    """A trained byte-level BPE of ``VOCAB_SIZE`` tokens or a little less."""
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _CORPUS,
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            special_tokens=["<s>", "</s>", "<pad>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return tokenizer


def make_checkpoint(name: str, path: Path) -> None:
    """Write the recipe ``name`` as a Hugging Face directory, with every tensor random."""
    recipe = RECIPES[name]
    torch.manual_seed(7)
    model = recipe.model(recipe.config(**{**_BASE, **recipe.changes}))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key or "bias" in key:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(path)
    PreTrainedTokenizerFast(
        tokenizer_object=byte_level_tokenizer(),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
    ).save_pretrained(path)


def load_reference(path: Path) -> PreTrainedModel:
    """The same checkpoint in transformers, float32, attention in its plainest form."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()
