"""The best column of each row of a product, on every instruction set of this machine."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch

from quire.engine.cpu.abi import MatmulOutput
from quire.engine.cpu.library import kernel_report, load_kernel
from quire.engine.cpu.packed_matrix import (
    Epilogue,
    PackedMatrix,
    WeightType,
    huge_page_buffer,
    matmul,
)
from quire.engine.cpu.team import Team

USABLE = [state.isa for state in kernel_report().states if state.problem is None]
DEPTH = 24
UNTOUCHED = -7

pytestmark = pytest.mark.skipif(not USABLE, reason="the kernel was not built on this machine")


@pytest.fixture(scope="module", params=USABLE)
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    with Team(load_kernel(request.param), 2) as team:
        yield team


def best_columns(
    team: Team, matrix: PackedMatrix, x_MK: torch.Tensor, wanted_M: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best columns, and the stored rows of those that are not wanted."""
    best_M = torch.full((len(x_MK),), UNTOUCHED, dtype=torch.int64)
    y_MN = torch.full((len(x_MK), matrix.num_columns), float(UNTOUCHED))
    native = team.library.native
    num_bytes = native.quire_activation_bytes(matrix.weight_type, len(x_MK), matrix.depth)
    buffer = huge_page_buffer(num_bytes)
    wanted_M = wanted_M.to(torch.uint8)
    output = MatmulOutput(y_MN.data_ptr(), y_MN.stride(0), None, Epilogue.STORE, 1.0, 0.0)
    status = native.quire_best_columns(
        team.handle,
        ctypes.byref(matrix.view),
        x_MK.data_ptr(),
        x_MK.stride(0),
        len(x_MK),
        buffer.data_ptr(),
        ctypes.byref(output),
        wanted_M.data_ptr(),
        best_M.data_ptr(),
    )
    team.check(status, "a test")
    return best_M, y_MN


@pytest.mark.parametrize("weight_type", list(WeightType))
@pytest.mark.parametrize("num_columns", [1, 31, 64, 333])
def test_the_best_column_of_rows_that_ask_for_it(
    team: Team, weight_type: WeightType, num_columns: int
) -> None:
    generator = torch.Generator().manual_seed(num_columns)
    matrix = PackedMatrix(
        team, torch.randn(num_columns, DEPTH, generator=generator) - 4.0, weight_type
    )
    for num_rows in (1, 7, 33, 80):
        # Positive rows: every product is negative, so that the last panel's zero padding would win.
        x_MK = torch.rand(num_rows, DEPTH, generator=generator)
        wanted_M = torch.arange(num_rows) % 3 != 1
        stored_MN = matmul(team, matrix, x_MK)
        best_M, y_MN = best_columns(team, matrix, x_MK, wanted_M)
        assert torch.equal(best_M[wanted_M], stored_MN.argmax(1)[wanted_M])
        assert torch.equal(y_MN[~wanted_M], stored_MN[~wanted_M])
        assert (best_M[~wanted_M] == UNTOUCHED).all()
        assert (y_MN[wanted_M] == UNTOUCHED).all()


@pytest.mark.parametrize("weight_type", list(WeightType))
def test_equal_values_go_to_the_lowest_column(team: Team, weight_type: WeightType) -> None:
    weight_NK = torch.zeros(400, DEPTH)
    weight_NK[[37, 69, 70, 350]] = 1.0
    matrix = PackedMatrix(team, weight_NK, weight_type)
    x_MK = torch.ones(3, DEPTH)
    x_MK[1] = 0.0
    x_MK[2] = -1.0
    for times in (1, 15):  # few rows and many rows take different paths
        best_M, _ = best_columns(team, matrix, x_MK.repeat(times, 1), torch.ones(3 * times))
        assert best_M.tolist() == [37, 0, 0] * times


def test_no_column_of_rows_that_are_not_numbers(team: Team) -> None:
    weight_NK = torch.zeros(100, DEPTH)
    weight_NK[40, 0] = 1.0
    weight_NK[:, 1] = 1.0
    matrix = PackedMatrix(team, weight_NK, WeightType.F32)
    x_MK = torch.zeros(4, DEPTH)
    x_MK[0, 2] = torch.nan  # 0 * nan is nan in every column
    x_MK[1, 0] = torch.inf  # inf in one column, nan in the others
    x_MK[2, 1] = -torch.inf
    x_MK[3, 0] = 1.0
    best_M, _ = best_columns(team, matrix, x_MK, torch.ones(4))
    assert best_M.tolist() == [-1, -1, -1, 40]
