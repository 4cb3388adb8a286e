"""ctypes mirrors of the decoding structs of ``csrc/choice.h``, ``csrc/decode_loop.h`` and
``csrc/advance.h``.

Must equal the headers. Pointers are plain addresses: the code that fills a struct must keep the
memory alive.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p


class DecodeRows(ctypes.Structure):
    """``quire::DecodeRows``: the rows of a decode loop, and the destination of its results."""

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
    """``quire::ChoiceRows``: samplers of rows, and the destination of their tokens."""

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
    """``quire::SequenceColumns``: the engine's state of its sequences."""

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
    """``quire::AdvanceMessage``: a message that only advances sequences, and its answer."""

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
