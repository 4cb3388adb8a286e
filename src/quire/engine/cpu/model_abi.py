"""The structs and functions of ``csrc/model_spec.h`` and ``csrc/model_abi.h`` as ctypes sees them.

Must equal the headers. Pointers are plain addresses: who fills a struct keeps what it points to.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_double, c_float, c_int32, c_int64, c_uint64, c_void_p

from quire.engine.cpu.abi import PackedMatrixView
from quire.engine.cpu.library import Signature


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
    """``quire::AdapterPair``: what one adapter adds to one projection."""

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
        ("scale", c_float),
        ("reserved", c_int32),
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


class RowMask(ctypes.Structure):
    """``quire::RowMask``: the explicit mask of one row."""

    _fields_ = (("row", c_int64), ("num_columns", c_int64), ("shown", c_void_p))


class StepArguments(ctypes.Structure):
    """``quire::StepArguments``: one step's rows, inputs and page tables."""

    _fields_ = (
        ("num_rows", c_int64),
        ("num_tokens", c_int64),
        ("row_starts", c_void_p),
        ("row_tables", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("masks", c_void_p),
        ("num_masks", c_int64),
        ("tokens", c_void_p),
        ("embeds", c_void_p),
        ("vectors", c_void_p),
        ("adapters", c_void_p),
        ("table_blocks", c_void_p),
        ("table_visible", c_void_p),
        ("table_num_pages", c_void_p),
        ("table_width", c_int64),
    )


class ScoredRow(ctypes.Structure):
    """``quire::ScoredRow``: a row whose attention mass is wanted."""

    _fields_ = (
        ("first_token", c_int64),
        ("num_tokens", c_int64),
        ("num_slots", c_int64),
        ("slots", c_void_p),
        ("positions", c_void_p),
        ("allowed", c_void_p),
        ("mass", c_void_p),
    )


class ScoredRows(ctypes.Structure):
    """``quire::ScoredRows``: all of them in a step."""

    _fields_ = (("rows", c_void_p), ("num_rows", c_int64), ("mass_stride", c_int64))


class LayerAttention(ctypes.Structure):
    """``quire::LayerAttention``: what one layer asks of attention."""

    _fields_ = (
        ("scale", c_float),
        ("softcap", c_float),
        ("window", c_int64),
        ("sinks", c_void_p),
    )


class AttentionArguments(ctypes.Structure):
    """``AttentionArguments``: one layer's attention by itself, for tests."""

    _fields_ = (
        ("step", POINTER(StepArguments)),
        ("layer", POINTER(LayerAttention)),
        ("slot_positions", c_void_p),
        ("q", c_void_p),
        ("new_keys", c_void_p),
        ("new_values", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("out", c_void_p),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("page_size", c_int64),
        ("kv_type", c_int32),
        ("ordering", c_int32),
    )


class DecodeRows(ctypes.Structure):
    """``quire::DecodeRows``: the rows of a decode loop, and where its results go."""

    _fields_ = (
        ("num_rows", c_int64),
        ("num_steps", c_int64),
        ("tables", c_void_p),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("cursors", c_void_p),
        ("steps", c_void_p),
        ("stop_tokens", c_void_p),
        ("num_stop_tokens", c_int64),
        ("min_steps", c_void_p),
        ("greedy", c_void_p),
        ("top_k", c_void_p),
        ("temperature", c_void_p),
        ("min_p", c_void_p),
        ("top_p", c_void_p),
        ("seeds", c_void_p),
        ("adapters", c_void_p),
        ("visible", c_void_p),
        ("table_blocks", c_void_p),
        ("table_visible", c_void_p),
        ("table_num_pages", c_void_p),
        ("table_width", c_int64),
        ("sampled", c_void_p),
        ("counts", c_void_p),
        ("stopped", c_void_p),
        ("failed", c_void_p),
    )


class ChoiceRows(ctypes.Structure):
    """``quire::ChoiceRows``: samplers of rows, and where their tokens go."""

    _fields_ = (
        ("num_rows", c_int64),
        ("greedy", c_void_p),
        ("top_k", c_void_p),
        ("temperature", c_void_p),
        ("min_p", c_void_p),
        ("top_p", c_void_p),
        ("seeds", c_void_p),
        ("positions", c_void_p),
        ("tokens", c_void_p),
    )


class SequenceColumns(ctypes.Structure):
    """``quire::SequenceColumns``: what the engine keeps of its sequences."""

    _fields_ = (
        ("capacity", c_int64),
        ("is_open", c_void_p),
        ("is_plain", c_void_p),
        ("epoch", c_void_p),
        ("table", c_void_p),
        ("limit", c_void_p),
        ("max_tokens", c_void_p),
        ("min_tokens", c_void_p),
        ("adapter", c_void_p),
        ("cursor", c_void_p),
        ("position", c_void_p),
        ("last_token", c_void_p),
        ("num_generated", c_void_p),
        ("end", c_void_p),
        ("matched", c_void_p),
        ("stop_tokens", c_void_p),
        ("num_stop_tokens", c_int64),
        ("greedy", c_void_p),
        ("top_k", c_void_p),
        ("temperature", c_void_p),
        ("min_p", c_void_p),
        ("top_p", c_void_p),
        ("seeds", c_void_p),
    )


class AdvanceMessage(ctypes.Structure):
    """``quire::AdvanceMessage``: a message in which sequences only go on, and its answer."""

    _fields_ = (
        ("num_entries", c_int64),
        ("num_steps", c_int64),
        ("max_position", c_int64),
        ("sequences", c_void_p),
        ("epochs", c_void_p),
        ("max_steps", c_void_p),
        ("visible", c_void_p),
        ("table_blocks", c_void_p),
        ("table_visible", c_void_p),
        ("table_num_pages", c_void_p),
        ("table_width", c_int64),
        ("ends", c_void_p),
        ("matched", c_void_p),
        ("token_starts", c_void_p),
        ("tokens", c_void_p),
        ("num_tokens", c_int64),
        ("num_failed", c_int64),
    )


class CacheView(ctypes.Structure):
    """``quire::CacheView``: K and V of every layer, in slots."""

    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("num_layers", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("type", c_int32),
        ("reserved", c_int32),
    )


SIGNATURES: Mapping[str, Signature] = {
    "quire_model_create": (c_void_p, (POINTER(ModelSpec), c_void_p)),
    "quire_model_destroy": (None, (c_void_p,)),
    "quire_model_embed": (None, (c_void_p, c_void_p, c_int64, c_void_p)),
    "quire_model_run": (c_int32, (c_void_p, POINTER(StepArguments), c_void_p)),
    "quire_model_run_scored": (
        c_int32,
        (c_void_p, POINTER(StepArguments), POINTER(ScoredRows), c_void_p),
    ),
    "quire_model_logits": (c_int32, (c_void_p, c_void_p, c_int64, c_void_p)),
    "quire_model_choose": (c_int32, (c_void_p, c_void_p, POINTER(ChoiceRows))),
    "quire_model_best": (c_int32, (c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_void_p)),
    "quire_model_decode": (c_int32, (c_void_p, POINTER(DecodeRows))),
    "quire_model_advance": (
        c_int32,
        (c_void_p, POINTER(AdvanceMessage), POINTER(SequenceColumns)),
    ),
    "quire_choose": (
        c_int64,
        (
            c_void_p,
            c_int64,
            c_int32,
            c_int64,
            c_double,
            c_double,
            c_double,
            c_uint64,
            c_int64,
        ),
    ),
    "quire_attend": (c_int32, (c_void_p, POINTER(AttentionArguments))),
    "quire_cache_elements": (c_int64, (c_int64, c_int64, c_int64)),
    "quire_copy_slots": (
        c_int32,
        (POINTER(CacheView), c_void_p, POINTER(CacheView), c_void_p, c_int64),
    ),
}

__all__ = [
    "SIGNATURES",
    "AdapterPair",
    "AdvanceMessage",
    "AttentionArguments",
    "CacheView",
    "ChoiceRows",
    "DecodeRows",
    "ExpertsSpec",
    "LayerAttention",
    "LayerSpec",
    "ModelSpec",
    "RopeSpec",
    "RowMask",
    "ScoredRow",
    "ScoredRows",
    "SequenceColumns",
    "StepArguments",
]
