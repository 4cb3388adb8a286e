"""Keys of a generative model's ``config.json`` that its family may leave unread, and why.

To serve a key, read it in the family's module; keys that were read are not looked up here.
"""

from __future__ import annotations

from typing import Any

from quire.engine.checkpoint.config_accounting import KeyRefusal, KeyScope, absent, merged, names
from quire.engine.quantization.known_keys import QUANTIZATION

_FILE = "describes the file, or the library that wrote it"
_TOKENS = "token ids, which the edge reads"
_TRAINING = "used in training only"
_GENERATION = "a default of generation, for which generation_config.json is read"
_TASK = "of a head that is not part of the model"
_FORM = "how another library computes or gives the same values"
_WEIGHTS = "visible from the checkpoint's tensors"
_UNSCALED = "used by scaled rotations only"
_VISION = "of the vision part, which is not served"

ANY_MODEL = KeyScope(
    harmless={
        _FILE: names(
            "model_type architectures transformers_version torch_dtype dtype auto_map name_or_path "
            "_name_or_path _commit_hash _diffusers_version tokenizer_class unsloth_version "
            "unsloth_fixed language license library_name tags _unsloth_temporary_tokenizer_dir "
            "adapter_path lora"
        ),
        _TOKENS: names(
            "bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id "
            "unk_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id prefix"
        ),
        _TRAINING: names(
            "initializer_range initializer_factor init_std attention_dropout hidden_dropout "
            "hidden_dropout_prob attention_probs_dropout_prob dropout resid_pdrop embd_pdrop "
            "attn_pdrop residual_dropout classifier_dropout router_aux_loss_coef "
            "router_jitter_noise output_router_logits gradient_checkpointing z_loss_coefficient "
            "training pretraining_tp"
        ),
        _GENERATION: names(
            "max_length min_length max_new_tokens min_new_tokens do_sample early_stopping "
            "num_beams num_beam_groups diversity_penalty temperature top_k top_p min_p top_h "
            "typical_p epsilon_cutoff eta_cutoff repetition_penalty encoder_repetition_penalty "
            "length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids "
            "num_return_sequences output_scores output_logits return_dict_in_generate "
            "remove_invalid_values exponential_decay_length_penalty suppress_tokens "
            "begin_suppress_tokens guidance_scale renormalize_logits constraints "
            "low_memory max_time stop_strings penalty_alpha cache_implementation "
            "max_matching_ngram_size assistant_early_exit forced_decoder_ids sequence_bias "
            "token_healing task_specific_params generation_config"
        ),
        _TASK: names(
            "id2label label2id num_labels problem_type finetuning_task summary_type "
            "summary_use_proj summary_activation summary_first_dropout summary_proj_to_labels "
            "sentence_transformers sbert_ce_default_activation_function"
        ),
        _FORM: names(
            "use_cache return_dict output_hidden_states output_attentions torchscript use_bfloat16 "
            "tf_legacy_loss chunk_size_feed_forward attn_implementation _attn_implementation "
            "_attn_implementation_autoset _flash_attn_2_enabled _experts_implementation "
            "experts_implementation use_flash_attn use_flash_attention flash_attn "
            "attention_implementation tie_last_hidden_states is_decoder "
            "cross_attention_hidden_size tie_encoder_decoder base_model_tp_plan base_model_pp_plan"
        ),
    },
    refused={
        "per_layer_config": absent("settings of single layers"),
        "is_encoder_decoder": absent("a model of encoder and decoder", False),
        "add_cross_attention": absent("attention to an encoder", False),
        "pruned_heads": absent("heads that are left out"),
        "transformers_weights": absent("weights in a file of another name"),
    },
    sections={"quantization_config": QUANTIZATION, "compression_config": QUANTIZATION},
)
"""Keys that transformers may write into the configuration of any model."""


def _full_attention(value: Any) -> bool:
    return value is None or (
        isinstance(value, list) and all(one == "full_attention" for one in value)
    )


ROPE = KeyScope(
    harmless={
        _UNSCALED: names(
            "rope_type type rope_theta partial_rotary_factor factor "
            "original_max_position_embeddings attention_factor max_position_embeddings"
        ),
        "yarn's, which finds another attention_factor": names("mscale mscale_all_dim"),
    },
    refused={
        "llama_4_scaling_beta": absent("queries that are scaled by their position", 0, 0.0),
        "mrope_section": absent("rotations by several axes"),
        "finetuned": absent("another rule of rotation", False),
    },
)
"""``sections``: for families in which layers with a window have their own rotation."""

_ROPES = KeyScope(
    harmless=ROPE.harmless,
    refused=ROPE.refused,
    sections={"full_attention": ROPE, "sliding_attention": ROPE},
)

DECODER = merged(
    [
        ANY_MODEL,
        KeyScope(
            harmless={
                _WEIGHTS: names("attention_bias mlp_bias qkv_bias"),
                _UNSCALED: names("original_max_position_embeddings initial_context_length"),
                "the family has one number of experts for each token": names("experts_per_token"),
                "the family has no windows, or says in layer_types which layers have them": names(
                    "max_window_layers sliding_window_pattern _sliding_window_pattern "
                    "use_sliding_window"
                ),
                "rotations are those of the text alone": names("use_mrope"),
                "the family has no dense layers": names(
                    "decoder_sparse_step mlp_only_layers shared_expert_intermediate_size"
                ),
                "of the publisher's own code, unused by transformers": names(
                    "full_attn_mod interpolate_factor"
                ),
            },
            refused={
                "is_causal": absent("attention in both directions", True),
                "use_bidirectional_attention": absent("attention in both directions", False),
                "attention_chunk_size": absent("attention within chunks"),
                "kv_sharing_modes": absent("layers that share K and V"),
                "num_kv_shared_layers": absent("layers that share K and V", 0),
                "clip_qkv": absent("queries, keys and values that are clipped"),
                "lm_head_bias": absent("a bias of the output projection", False),
                "sliding_window": absent("sliding-window layers, which this family does not have"),
                "layer_types": KeyRefusal("layers of several kinds", _full_attention),
                "rope_parameters": absent("a rotation that this family does not have"),
                "rope_scaling": absent("a rotation that this family does not have"),
                "partial_rotary_factor": absent("rotating a part of every head", 1, 1.0),
                "attn_logit_softcapping": absent("a soft-cap that this family does not have"),
                "final_logit_softcapping": absent("a soft-cap that this family does not have"),
            },
            sections={"rope_parameters": _ROPES, "rope_scaling": ROPE},
        ),
    ]
)
"""A decoder alone, or the text part of a model that takes images."""

_IMAGES = KeyScope(
    harmless={
        _VISION: names(
            "vision_config image_token_index image_token_id boi_token_index eoi_token_index "
            "boi_token_id eoi_token_id mm_tokens_per_image spatial_merge_size vision_feature_layer "
            "vision_feature_select_strategy projector_hidden_act multimodal_projector_bias "
            "image_seq_length ignore_index image_grid_pinpoints"
        ),
        "given in the text part too": names("vocab_size hidden_size max_position_embeddings"),
    },
)

_TOWER = merged(
    [
        ANY_MODEL,
        KeyScope(
            harmless={
                "of parts after the layers that are used": names(
                    "projection_dim vocab_size logit_scale_init_value vision_use_head"
                ),
            },
            refused={"num_channels": absent("images without exactly three colour channels", 3)},
        ),
    ]
)

WITH_IMAGES = merged(
    [ANY_MODEL, _IMAGES, KeyScope(sections={"text_config": DECODER, "vision_config": _TOWER})]
)
"""A model that takes images, of which the text part or both parts are served."""
