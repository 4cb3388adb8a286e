"""Weights packed for the kernel: the only copy of them in memory (``csrc/packed_matrix.h``).

Owns the memory of panels and the call of one product. Knows no layers.

Tensor suffixes: N outputs, K inputs, M rows.
"""

from __future__ import annotations

import ctypes
import mmap
from enum import IntEnum

import torch

from quire.core.errors import ConfigError
from quire.engine.cpu.abi import MatmulOutput, PackedMatrixView, WeightSource
from quire.engine.cpu.team import Team

PANEL_COLUMNS = 32
_HUGE_PAGE_BYTES = 2 << 20


class WeightType(IntEnum):
    """The type of packed weights, and of the rows that they are multiplied with."""

    F32 = 0
    BF16 = 1
    INT8 = 2


class Epilogue(IntEnum):
    """The operation on a product before it is stored; ``csrc/matmul.h`` defines each."""

    STORE = 0
    ADD = 1
    SILU_MUL = 2
    GELU_TANH_MUL = 3
    CLAMPED_SWIGLU = 4


class Ordering(IntEnum):
    """Whether a row's bits may depend on the rest of the batch."""

    FASTEST = 0
    BATCH_INVARIANT = 1


_ELEMENTS = {torch.float32: WeightType.F32, torch.bfloat16: WeightType.BF16}
_GATED = (Epilogue.SILU_MUL, Epilogue.GELU_TANH_MUL, Epilogue.CLAMPED_SWIGLU)


def huge_page_buffer(num_bytes: int) -> torch.Tensor:
    """Zeroed, page-aligned memory as a uint8 tensor, backed by huge pages where the system has
    them: panels are read once per step, so each small page would cost a TLB miss."""
    # private, because shared memory has huge pages only where the system is configured for it
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(num_bytes, 1), flags=flags)
    if num_bytes >= _HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8, count=max(num_bytes, 1))


class PackedMatrix:
    """``weight_NK`` (and ``up_NK`` of the same shape for a gated product) in panels.

    ``view`` is the argument for the C interface; it is valid as long as this object lives.
    """

    def __init__(
        self,
        team: Team,
        weight_NK: torch.Tensor,
        weight_type: WeightType,
        up_NK: torch.Tensor | None = None,
    ) -> None:
        _check_source(weight_NK, up_NK)
        self.num_columns, self.depth = weight_NK.shape
        self.weight_type = weight_type
        self.is_gated = up_NK is not None
        columns = PANEL_COLUMNS // 2 if self.is_gated else PANEL_COLUMNS
        self.num_panels = -(-self.num_columns // columns)
        panel_bytes = int(team.library.native.quire_panel_bytes(weight_type, self.depth))
        self._panels = huge_page_buffer(self.num_panels * panel_bytes)
        is_int8 = weight_type is WeightType.INT8
        padded = self.num_panels * PANEL_COLUMNS if is_int8 else 0
        self._scales = torch.zeros(padded, dtype=torch.float32)
        self._sums = torch.zeros(padded, dtype=torch.int32)
        self.view = PackedMatrixView(
            self.num_columns,
            self.depth,
            weight_type,
            int(self.is_gated),
            self._panels.data_ptr(),
            self._scales.data_ptr() if is_int8 else None,
            self._sums.data_ptr() if is_int8 else None,
            panel_bytes,
        )
        source = WeightSource(
            weight_NK.data_ptr(),
            None if up_NK is None else up_NK.data_ptr(),
            weight_NK.stride(0),
            _ELEMENTS[weight_NK.dtype],
        )
        status = team.library.native.quire_pack(team.handle, self.view, source)
        team.check(status, "packing weights")

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads: panels, and the scales and sums of int8."""
        return self._panels.numel() + 4 * (self._scales.numel() + self._sums.numel())

    def unpack(self, team: Team) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The weights as float32 ``[N, K]`` (int8: dequantised), and the gated half if any."""
        shape = (self.num_columns, self.depth)
        rows_NK = torch.empty(shape)
        up_NK = torch.empty(shape) if self.is_gated else None
        up = None if up_NK is None else up_NK.data_ptr()
        native = team.library.native
        status = native.quire_unpack(team.handle, self.view, rows_NK.data_ptr(), up, self.depth)
        team.check(status, "unpacking weights")
        return rows_NK, up_NK

    def pack_bias(self, bias_N: torch.Tensor, up_N: torch.Tensor | None = None) -> torch.Tensor:
        """A bias in the order of the packed columns, padded with zeros, as float32."""
        halves = [bias_N] if up_N is None else [bias_N, up_N]
        columns = PANEL_COLUMNS // len(halves)
        packed = torch.zeros(self.num_panels, len(halves), columns)
        for index, half_N in enumerate(halves):
            padded = torch.zeros(self.num_panels * columns)
            padded[: self.num_columns] = half_N.float()
            packed[:, index] = padded.view(self.num_panels, columns)
        return packed.flatten()


class Product:
    """One product ``y_MN = epilogue(x_MK . weights)``, checked and with its memory allocated once.

    A call costs only the C function, as inside the kernel's step. Benchmarks therefore reuse one
    object; other code calls :func:`matmul`.

    ``bias`` comes from :meth:`PackedMatrix.pack_bias`. ``Epilogue.ADD`` adds to ``y_MN``.

    Raises:
        ConfigError: shapes, types or the epilogue do not fit the matrix.
    """

    def __init__(
        self,
        team: Team,
        matrix: PackedMatrix,
        x_MK: torch.Tensor,
        y_MN: torch.Tensor,
        *,
        epilogue: Epilogue = Epilogue.STORE,
        bias: torch.Tensor | None = None,
        scale: float = 1.0,
        limit: float = 7.0,
        ordering: Ordering = Ordering.FASTEST,
    ) -> None:
        num_rows = _check_product(matrix, x_MK, epilogue)
        _check_output(y_MN, num_rows, matrix.num_columns)
        native = team.library.native
        num_bytes = native.quire_activation_bytes(matrix.weight_type, num_rows, matrix.depth)
        self._converted = huge_page_buffer(int(num_bytes))
        self._team = team
        self._borrowed = (matrix, x_MK, y_MN, bias)
        bias_address = None if bias is None else bias.data_ptr()
        output = MatmulOutput(y_MN.data_ptr(), y_MN.stride(0), bias_address, epilogue, scale, limit)
        self._run = native.quire_matmul
        self._arguments = (
            team.handle,
            ctypes.byref(matrix.view),
            x_MK.data_ptr(),
            x_MK.stride(0),
            num_rows,
            self._converted.data_ptr(),
            ctypes.byref(output),
            ordering,
        )

    def __call__(self) -> None:
        status = self._run(*self._arguments)
        if status != 0:
            self._team.check(status, "a product", "multiply fewer rows at a time")


def matmul(
    team: Team,
    matrix: PackedMatrix,
    x_MK: torch.Tensor,
    *,
    out_MN: torch.Tensor | None = None,
    epilogue: Epilogue = Epilogue.STORE,
    bias: torch.Tensor | None = None,
    scale: float = 1.0,
    limit: float = 7.0,
    ordering: Ordering = Ordering.FASTEST,
) -> torch.Tensor:
    """A :class:`Product` that is called once; float32 in and out."""
    y_MN = torch.zeros(len(x_MK), matrix.num_columns) if out_MN is None else out_MN
    Product(
        team,
        matrix,
        x_MK,
        y_MN,
        epilogue=epilogue,
        bias=bias,
        scale=scale,
        limit=limit,
        ordering=ordering,
    )()
    return y_MN


def _check_source(weight_NK: torch.Tensor, up_NK: torch.Tensor | None) -> None:
    for half_NK in (weight_NK, up_NK):
        if half_NK is None:
            continue
        if half_NK.dim() != 2 or half_NK.stride(1) != 1 or half_NK.dtype not in _ELEMENTS:
            raise ConfigError(
                f"weights of shape {tuple(half_NK.shape)}, strides {half_NK.stride()} and type "
                f"{half_NK.dtype} cannot be packed: give rows of float32 or bfloat16"
            )
    if up_NK is not None and (
        up_NK.shape != weight_NK.shape
        or up_NK.dtype != weight_NK.dtype
        or up_NK.stride() != weight_NK.stride()
    ):
        raise ConfigError(
            f"gate {tuple(weight_NK.shape)} and up {tuple(up_NK.shape)} must have one shape, type "
            "and stride"
        )


def _check_product(matrix: PackedMatrix, x_MK: torch.Tensor, epilogue: Epilogue) -> int:
    if x_MK.dim() != 2 or x_MK.shape[1] != matrix.depth or x_MK.dtype != torch.float32:
        raise ConfigError(
            f"rows of shape {tuple(x_MK.shape)} and type {x_MK.dtype} do not fit a matrix of depth "
            f"{matrix.depth}: give float32 [M, {matrix.depth}]"
        )
    if x_MK.stride(1) != 1:
        raise ConfigError(f"rows must be contiguous; their strides are {x_MK.stride()}")
    if matrix.is_gated != (epilogue in _GATED):
        kind = "gated" if matrix.is_gated else "plain"
        raise ConfigError(f"epilogue {epilogue.name} does not fit a {kind} matrix")
    return int(x_MK.shape[0])


def _check_output(y_MN: torch.Tensor, num_rows: int, num_columns: int) -> None:
    if y_MN.shape != (num_rows, num_columns) or y_MN.dtype != torch.float32 or y_MN.stride(1) != 1:
        raise ConfigError(
            f"output of shape {tuple(y_MN.shape)} and type {y_MN.dtype} does not fit: give float32 "
            f"[{num_rows}, {num_columns}]"
        )
