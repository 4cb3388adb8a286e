"""Small random checkpoints, made with transformers, for comparing the engine with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CwmConfig,
    CwmForCausalLM,
    Ernie4_5Config,
    Ernie4_5ForCausalLM,
    Exaone4Config,
    Exaone4ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    Glm4Config,
    Glm4ForCausalLM,
    GlmConfig,
    GlmForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    GraniteMoeConfig,
    GraniteMoeForCausalLM,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    HeliumConfig,
    HeliumForCausalLM,
    InternLM3Config,
    LlamaConfig,
    LlamaForCausalLM,
    Ministral3Config,
    Ministral3ForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SeedOssConfig,
    SeedOssForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

VOCAB_SIZE = 300
EOS = 1

_CORPUS = ["the quick brown fox jumps over the lazy dog", '{"name": "value", "count": 12}'] * 4
BASE: dict[str, Any] = {
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
    """One architecture variant. ``engine``: settings of ``EngineConfig`` that it needs."""

    config: type[Any] = LlamaConfig
    model: type[Any] = LlamaForCausalLM
    changes: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)

    @property
    def has_experts(self) -> bool:
        return "num_experts_per_tok" in self.changes


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
"""The core set: plain decoders, used for tests of memory and sampling."""

_PLANES = [1.0, 1.3, 1.9, 2.6, 4.2, 7.5]
_LONGROPE: dict[str, Any] = {
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "hidden_size": 32,
    "max_position_embeddings": 64,
    **_rope(
        rope_type="longrope",
        partial_rotary_factor=0.75,
        short_factor=_PLANES,
        long_factor=[2 * one for one in _PLANES],
    ),
}
_EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 5}
_GRANITE_4: dict[str, Any] = {
    "num_local_experts": 0,
    "shared_intermediate_size": 40,
    "layer_types": ["attention"] * 3,
    "position_embedding_type": "rope",
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.4,
    "logits_scaling": 1.5,
}
_LAYER_TYPES = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]

MODELS: dict[str, Recipe] = {
    **RECIPES,
    "llama-odd-heads": Recipe(
        changes={"hidden_size": 36, "num_attention_heads": 6, "num_key_value_heads": 2}
    ),
    "llama-five-to-one": Recipe(
        changes={"hidden_size": 40, "num_attention_heads": 5, "num_key_value_heads": 1}
    ),
    "llama-rope-dynamic": Recipe(
        changes={
            "max_position_embeddings": 16,
            **_rope(rope_type="dynamic", factor=4.0),
        },
        engine={"max_model_len": 23},
    ),
    "llama-rope-dynamic-within": Recipe(
        changes={"max_position_embeddings": 64, **_rope(rope_type="dynamic", factor=4.0)},
    ),
    "mistral": Recipe(MistralConfig, MistralForCausalLM, {"sliding_window": 6}),
    "mistral-full": Recipe(
        MistralConfig, MistralForCausalLM, {"sliding_window": None, "head_dim": 16}
    ),
    "ministral": Recipe(
        MinistralConfig,
        MinistralForCausalLM,
        {
            "num_hidden_layers": 4,
            "head_dim": 8,
            "sliding_window": 5,
            "layer_types": _LAYER_TYPES,
        },
    ),
    "ministral3": Recipe(
        Ministral3Config,
        Ministral3ForCausalLM,
        {
            "head_dim": 8,
            **_rope(
                rope_type="yarn",
                factor=4.0,
                original_max_position_embeddings=8,
                mscale=1.0,
                mscale_all_dim=1.0,
                llama_4_scaling_beta=0.7,
            ),
        },
    ),
    "mixtral": Recipe(
        MixtralConfig, MixtralForCausalLM, {**_EXPERTS, "sliding_window": 7, "num_local_experts": 4}
    ),
    "qwen2-window": Recipe(
        Qwen2Config,
        Qwen2ForCausalLM,
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3-yarn": Recipe(
        Qwen3Config,
        Qwen3ForCausalLM,
        _rope(rope_type="yarn", factor=2.0, original_max_position_embeddings=256, beta_fast=16.0),
    ),
    "qwen3-moe": Recipe(
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {
            **_EXPERTS,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3-moe-unnormalized": Recipe(
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {**_EXPERTS, "moe_intermediate_size": 24, "num_experts_per_tok": 3},
    ),
    "gemma": Recipe(GemmaConfig, GemmaForCausalLM, {"head_dim": 16, "tie_word_embeddings": True}),
    "gemma2": Recipe(
        Gemma2Config,
        Gemma2ForCausalLM,
        {
            "head_dim": 16,
            "sliding_window": 6,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
            "tie_word_embeddings": True,
        },
    ),
    "gemma3": Recipe(
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        {
            "num_hidden_layers": 4,
            "head_dim": 16,
            "sliding_window": 6,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 24,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        },
    ),
    "phi3": Recipe(Phi3Config, Phi3ForCausalLM, {"sliding_window": 9}),
    "phi3-longrope": Recipe(
        Phi3Config,
        Phi3ForCausalLM,
        {**_LONGROPE, "original_max_position_embeddings": 16},
    ),
    "phi3-longrope-short": Recipe(
        Phi3Config,
        Phi3ForCausalLM,
        {**_LONGROPE, "original_max_position_embeddings": 48},
        engine={"max_model_len": 48},
    ),
    "gpt-oss": Recipe(
        GptOssConfig,
        GptOssForCausalLM,
        {
            **_EXPERTS,
            "intermediate_size": 64,
            "num_hidden_layers": 4,
            "head_dim": 8,
            "sliding_window": 6,
            "layer_types": _LAYER_TYPES,
        },
    ),
    "olmo2": Recipe(Olmo2Config, Olmo2ForCausalLM),
    "olmo3": Recipe(
        Olmo3Config,
        Olmo3ForCausalLM,
        {
            "num_hidden_layers": 4,
            "sliding_window": 5,
            "layer_types": _LAYER_TYPES,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
                "full_attention": {
                    "rope_type": "yarn",
                    "factor": 2.0,
                    "original_max_position_embeddings": 256,
                    "rope_theta": 1e3,
                },
            },
        },
    ),
    "smollm3": Recipe(
        SmolLM3Config, SmolLM3ForCausalLM, {"num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0]}
    ),
    "granite": Recipe(
        GraniteConfig,
        GraniteForCausalLM,
        {
            "embedding_multiplier": 6.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 1.5,
            "attention_bias": True,
        },
    ),
    "granite-moe": Recipe(
        GraniteMoeConfig,
        GraniteMoeForCausalLM,
        {**_EXPERTS, "attention_multiplier": 0.2, "residual_multiplier": 0.4},
    ),
    "granite-4": Recipe(
        GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM, {**_GRANITE_4, "mamba_n_heads": 2}
    ),
    "granite-4-unrotated": Recipe(
        GraniteMoeHybridConfig,
        GraniteMoeHybridForCausalLM,
        {**_GRANITE_4, "mamba_n_heads": 2, "position_embedding_type": None},
    ),
    "glm": Recipe(GlmConfig, GlmForCausalLM, {"head_dim": 12}),
    "glm4": Recipe(Glm4Config, Glm4ForCausalLM, {"head_dim": 16, "attention_bias": False}),
    "exaone4": Recipe(
        Exaone4Config,
        Exaone4ForCausalLM,
        {"num_hidden_layers": 4, "sliding_window": 5, "layer_types": _LAYER_TYPES},
    ),
    "exaone4-full": Recipe(
        Exaone4Config,
        Exaone4ForCausalLM,
        {"sliding_window": None, "layer_types": ["full_attention"] * 3},
    ),
    "seed-oss": Recipe(SeedOssConfig, SeedOssForCausalLM, {"head_dim": 12}),
    "olmoe": Recipe(OlmoeConfig, OlmoeForCausalLM, {"num_experts_per_tok": 2, "num_experts": 5}),
    "ernie4-5": Recipe(
        Ernie4_5Config,
        Ernie4_5ForCausalLM,
        {"head_dim": 12, "use_bias": True, "tie_word_embeddings": True},
    ),
    "helium": Recipe(HeliumConfig, HeliumForCausalLM, {"head_dim": 8}),
    "cwm": Recipe(
        CwmConfig,
        CwmForCausalLM,
        {
            "num_hidden_layers": 4,
            "head_dim": 8,
            "sliding_window": 5,
            "layer_types": _LAYER_TYPES,
            **_rope(
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
        },
    ),
    "internlm3": Recipe(
        InternLM3Config,
        LlamaForCausalLM,
        {"head_dim": 8, "attention_bias": True, "mlp_bias": True},
    ),
}
"""Every family and variant, on which all backends must agree."""


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
    recipe = MODELS[name]
    torch.manual_seed(7)
    model = recipe.model(recipe.config(**{**BASE, **recipe.changes}))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key or "bias" in key or "sinks" in key:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(path)
    PreTrainedTokenizerFast(
        tokenizer_object=byte_level_tokenizer(),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
    ).save_pretrained(path)


def load_reference(name: str, path: Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The recipe's checkpoint in transformers, with its plainest attention."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, attn_implementation="eager"
    ).eval()
    length = MODELS[name].engine.get("max_model_len")
    if length is not None:  # dynamic NTK keeps the rotation of the longest context so far
        with torch.inference_mode():
            model(torch.zeros(1, length, dtype=torch.int64), use_cache=False)
    return model
