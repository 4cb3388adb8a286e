"""ctypes mirrors of the structs and functions of ``csrc/abi.h``. Must equal the header."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_uint64, c_void_p

from quire.engine.cpu.library import Signature


class PackedMatrixView(ctypes.Structure):
    """``quire::PackedMatrix``: a view of memory that the Python object keeps alive."""

    _fields_ = (
        ("num_columns", c_int64),
        ("depth", c_int64),
        ("type", c_int32),
        ("layout", c_int32),
        ("panels", c_void_p),
        ("scales", c_void_p),
        ("sums", c_void_p),
        ("panel_bytes", c_int64),
    )


class WeightSource(ctypes.Structure):
    """``quire::WeightSource``: row-major matrices to pack."""

    _fields_ = (
        ("rows", c_void_p),
        ("up", c_void_p),
        ("stride", c_int64),
        ("element", c_int32),
    )


class MatmulOutput(ctypes.Structure):
    """``quire::MatmulOutput``: the destination of a product and its epilogue."""

    _fields_ = (
        ("rows", c_void_p),
        ("stride", c_int64),
        ("bias", c_void_p),
        ("epilogue", c_int32),
        ("scale", c_float),
        ("limit", c_float),
    )


_PRODUCT = (
    c_void_p,
    POINTER(PackedMatrixView),
    c_void_p,
    c_int64,
    c_int64,
    c_void_p,
    POINTER(MatmulOutput),
)

SIGNATURES: Mapping[str, Signature] = {
    "quire_isa": (c_char_p, ()),
    "quire_team_create": (c_void_p, (c_int32,)),
    "quire_team_destroy": (None, (c_void_p,)),
    "quire_team_fail": (c_int32, (c_void_p, c_int32, c_char_p)),
    "quire_failure_text": (c_char_p, ()),
    "quire_panel_bytes": (c_int64, (c_int32, c_int64)),
    "quire_activation_bytes": (c_int64, (c_int32, c_int64, c_int64)),
    "quire_pack": (c_int32, (c_void_p, POINTER(PackedMatrixView), POINTER(WeightSource))),
    "quire_unpack": (c_int32, (c_void_p, POINTER(PackedMatrixView), c_void_p, c_void_p, c_int64)),
    "quire_matmul": (c_int32, (*_PRODUCT, c_int32)),
    "quire_best_columns": (c_int32, (*_PRODUCT, c_void_p, c_void_p)),
    "quire_read_pass": (c_uint64, (c_void_p, c_void_p, c_int64)),
}
