"""Keys of a ``quantization_config`` that its scheme may leave unread, and why."""

from __future__ import annotations

from typing import Any

from quire.engine.checkpoint.config_accounting import KeyRefusal, KeyScope, absent, names

_FILE = "describes the file, or the library that wrote it"
_PLACES = "which tensors are packed is visible from their names"
_MAKING = "how the weights were packed"
_SHAPES = "visible from the shapes and types of the tensors"
_KERNELS = "how another library computes with them"
_ACTIVATIONS = "of activations and caches, which stay in the engine's number format"


def _is_dense(value: Any) -> bool:
    return not value or (isinstance(value, dict) and value.get("format", "dense") == "dense")


_ARGUMENTS = KeyScope(
    harmless={
        _SHAPES: names(
            "num_bits type symmetric strategy group_size block_structure scale_dtype zp_dtype"
        ),
        _MAKING: names("observer observer_kwargs actorder dynamic is_mx"),
    },
)
"""The arguments of weights or activations in a group of compressed-tensors."""

_GROUP = KeyScope(
    harmless={_PLACES: names("targets"), _FILE: names("format")},
    sections={"weights": _ARGUMENTS, "input_activations": _ARGUMENTS},
)

QUANTIZATION = KeyScope(
    harmless={
        _FILE: names(
            "quant_method format version quantization_status global_compression_ratio "
            "model_name_or_path model_file_base_name meta fmt provider producer"
        ),
        _PLACES: names(
            "modules_to_not_convert ignored_layers ignore exclude_modules lm_head "
            "modules_in_block_to_quantize block_name_to_quantize true_sequential "
            "module_name_preceding_first_block modules_to_convert"
        ),
        _MAKING: names(
            "damp_percent damp_auto_increment static_groups sym mse dataset tokenizer model_seqlen "
            "batch_size pad_token_id nsamples seqlen iters lr minmax_lr amp autoround_version "
            "enable_minmax_tuning enable_quanted_input low_gpu_mem_usage act_group_aware hyb_act "
            "gradient_accumulate_steps group_aware quant_alg"
        ),
        _SHAPES: names("data_type scale_dtype scale_fmt"),
        _KERNELS: names(
            "backend do_fuse fuse_max_seq_len modules_to_fuse use_exllama disable_exllama "
            "exllama_config use_cuda_fp16 max_input_length cache_block_outputs dequantize"
        ),
        _ACTIVATIONS: names("activation_scheme kv_cache_scheme"),
    },
    refused={
        "dynamic": absent("other bits or groups in some modules"),
        "extra_config": absent("other bits or groups in some modules"),
        "is_marlin_format": absent("weights in the order of one kernel", False),
        "pack_dtype": absent("words of another size", "int32"),
        "transform_config": absent("activations that are rotated before a product"),
        "rotation_config": absent("activations that are rotated before a product"),
        "sparsity_config": KeyRefusal("weights that are stored sparsely", _is_dense),
    },
    sections={"config_groups": KeyScope(sections={"*": _GROUP})},
)
