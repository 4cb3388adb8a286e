"""ctypes mirrors of the functions of ``csrc/model_abi.h`` and of the structs of one step.

Must equal the headers. Pointers are plain addresses: the code that fills a struct must keep the
memory alive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_double, c_float, c_int32, c_int64, c_uint64, c_void_p

from quire.engine.cpu.decode_abi import AdvanceMessage, ChoiceRows, DecodeRows, SequenceColumns
from quire.engine.cpu.library import Signature
from quire.engine.cpu.model_spec import ModelSpec


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
    """``quire::ScoredRows``: all scored rows of a step."""

    _fields_ = (("rows", c_void_p), ("num_rows", c_int64), ("mass_stride", c_int64))


class LayerAttention(ctypes.Structure):
    """``quire::LayerAttention``: the attention parameters of one layer."""

    _fields_ = (
        ("scale", c_float),
        ("softcap", c_float),
        ("window", c_int64),
        ("sinks", c_void_p),
    )


class AttentionArguments(ctypes.Structure):
    """``AttentionArguments``: one layer's attention alone, for tests."""

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


class KeyTurns(ctypes.Structure):
    """``quire::KeyTurns``: the rotations of some slots' keys."""

    _fields_ = (
        ("angles", c_void_p),
        ("num_planes", c_void_p),
        ("rope_of_layer", c_void_p),
    )


SIGNATURES: Mapping[str, Signature] = {
    "quire_model_create": (c_void_p, (POINTER(ModelSpec), c_void_p)),
    "quire_model_destroy": (None, (c_void_p,)),
    "quire_model_embed": (None, (c_void_p, c_void_p, c_int64, c_void_p)),
    "quire_progress_create": (c_void_p, ()),
    "quire_progress_destroy": (None, (c_void_p,)),
    "quire_progress_reach": (None, (c_void_p, c_int64)),
    "quire_progress_wait": (None, (c_void_p, c_int64)),
    "quire_model_watch": (None, (c_void_p, c_void_p, c_int64)),
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
    "quire_read_tokens": (None, (POINTER(CacheView), c_void_p, c_int64, c_void_p)),
    "quire_write_tokens": (None, (POINTER(CacheView), c_void_p, c_int64, c_void_p)),
    "quire_turn_keys": (
        c_int32,
        (c_void_p, POINTER(CacheView), c_void_p, c_int64, POINTER(KeyTurns)),
    ),
}
