"""ctypes mirrors of the structs of ``csrc/model_spec.h``, which describe a model to the kernel.

Must equal the header. Pointers are plain addresses: the code that fills a struct must keep the
memory alive.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p

from quire.engine.cpu.abi import PackedMatrixView


class ExpertsSpec(ctypes.Structure):
    """``quire::ExpertsSpec``: a mixture of experts in one layer."""

    _fields_ = (
        ("num_experts", c_int64),
        ("top_k", c_int64),
        ("router", PackedMatrixView),
        ("gate_up", c_void_p),
        ("down", c_void_p),
        ("router_bias", c_void_p),
        ("gate_up_bias", c_void_p),
        ("down_bias", c_void_p),
        ("chosen_scoring", c_int32),
        ("normalize", c_int32),
    )


class AdapterPair(ctypes.Structure):
    """``quire::AdapterPair``: one adapter's matrices at one projection."""

    _fields_ = (("down", PackedMatrixView), ("up", PackedMatrixView))


class LayerSpec(ctypes.Structure):
    """``quire::LayerSpec``: one decoder layer."""

    _fields_ = (
        ("qkv", PackedMatrixView),
        ("output", PackedMatrixView),
        ("gate_up", PackedMatrixView),
        ("down", PackedMatrixView),
        ("qkv_bias", c_void_p),
        ("output_bias", c_void_p),
        ("gate_up_bias", c_void_p),
        ("down_bias", c_void_p),
        ("attention_norm", c_void_p),
        ("attention_output_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("mlp_output_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("sinks", c_void_p),
        ("experts", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("window", c_int64),
        ("rope", c_int64),
        ("qkv_adapters", c_void_p),
        ("output_adapters", c_void_p),
        ("gate_up_adapters", c_void_p),
        ("down_adapters", c_void_p),
    )


class RopeSpec(ctypes.Structure):
    """``quire::RopeSpec``: the frequencies of one rotation."""

    _fields_ = (
        ("frequencies", c_void_p),
        ("num_planes", c_int64),
        ("query_length", c_int64),
        ("scale", c_float),
        ("query_beta", c_float),
    )


class ModelSpec(ctypes.Structure):
    """``quire::ModelSpec``: a whole decoder with its cache."""

    _fields_ = (
        ("vocab_size", c_int64),
        ("hidden_size", c_int64),
        ("num_layers", c_int64),
        ("num_ropes", c_int64),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("page_size", c_int64),
        ("layers", POINTER(LayerSpec)),
        ("ropes", POINTER(RopeSpec)),
        ("final_norm", c_void_p),
        ("embedding", c_void_p),
        ("output", PackedMatrixView),
        ("slot_positions", c_void_p),
        ("embedding_type", c_int32),
        ("kv_type", c_int32),
        ("qk_norm", c_int32),
        ("activation", c_int32),
        ("ordering", c_int32),
        ("norm_eps", c_float),
        ("attention_scale", c_float),
        ("attention_softcap", c_float),
        ("embedding_multiplier", c_float),
        ("residual_multiplier", c_float),
        ("logit_multiplier", c_float),
        ("logit_softcap", c_float),
    )
