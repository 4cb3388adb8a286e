"""The packed products of every instruction set that this machine has, against float64."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from quire.core.errors import ConfigError
from quire.engine.cpu.library import kernel_report, load_kernel
from quire.engine.cpu.packed_matrix import (
    Epilogue,
    Ordering,
    PackedMatrix,
    WeightType,
    huge_page_buffer,
    matmul,
)
from quire.engine.cpu.team import Team

USABLE = [state.isa for state in kernel_report().states if state.problem is None]
ROWS = (1, 2, 3, 7, 12, 13, 16, 17, 33, 100)
SHAPES = ((5, 3), (33, 65), (64, 128), (70, 250))  # N, K
TOLERANCE = {WeightType.F32: 1e-6, WeightType.BF16: 1e-6, WeightType.INT8: 1e-5}
"""Relative to the largest magnitude of the result: rounding of float32 sums only."""

pytestmark = pytest.mark.skipif(not USABLE, reason="the kernel was not built on this machine")


@pytest.fixture(scope="module", params=USABLE)
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    with Team(load_kernel(request.param), 2) as team:
        yield team


def random_matrix(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def as_multiplied(x_MK: torch.Tensor, weight_type: WeightType) -> torch.Tensor:
    """The rows after the conversion that ``packed_matrix.h`` defines, in float64."""
    if weight_type is WeightType.BF16:
        return x_MK.bfloat16().double()
    if weight_type is WeightType.F32:
        return x_MK.double()
    scale_M1 = x_MK.abs().amax(1, keepdim=True).double() / 127
    return (x_MK.double() / scale_M1).round().clamp(-127, 127) * scale_M1


def reference(x_MK: torch.Tensor, matrix: PackedMatrix, team: Team) -> torch.Tensor:
    weight_NK, _ = matrix.unpack(team)
    return as_multiplied(x_MK, matrix.weight_type) @ weight_NK.double().T


def assert_near(found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    error = (found.double() - wanted).abs().max() / wanted.abs().max()
    assert error < tolerance


@pytest.mark.parametrize("weight_type", list(WeightType))
@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_any_shape(team: Team, weight_type: WeightType, shape: tuple[int, int]) -> None:
    matrix = PackedMatrix(team, random_matrix(*shape), weight_type)
    for num_rows in ROWS:
        x_MK = random_matrix(num_rows, shape[1], seed=num_rows)
        y_MN = matmul(team, matrix, x_MK)
        assert_near(y_MN, reference(x_MK, matrix, team), TOLERANCE[weight_type])


@pytest.mark.parametrize(
    ("weight_type", "depth"),
    [(WeightType.F32, 1900), (WeightType.BF16, 1900), (WeightType.INT8, 1100)],
)
def test_products_that_are_cut_along_every_axis(
    team: Team, weight_type: WeightType, depth: int
) -> None:
    matrix = PackedMatrix(team, random_matrix(300, depth), weight_type)
    x_MK = random_matrix(530, depth, seed=1)
    y_MN = matmul(team, matrix, x_MK)
    assert_near(y_MN, reference(x_MK, matrix, team), 4 * TOLERANCE[weight_type])


@pytest.mark.parametrize("weight_type", list(WeightType))
def test_few_rows_of_a_depth_that_is_several_parts(team: Team, weight_type: WeightType) -> None:
    """Each number of rows that is multiplied at once; the last part is shorter than the others."""
    matrix = PackedMatrix(team, random_matrix(70, 1130), weight_type)
    for num_rows in range(1, 18):
        x_MK = random_matrix(num_rows, 1130, seed=num_rows)
        y_MN = matmul(team, matrix, x_MK)
        assert_near(y_MN, reference(x_MK, matrix, team), 3 * TOLERANCE[weight_type])


@pytest.mark.parametrize("weight_type", [WeightType.F32, WeightType.BF16])
@pytest.mark.parametrize("num_rows", [3, 8, 40])
def test_infinities_and_nans_reach_their_outputs_alone(
    team: Team, weight_type: WeightType, num_rows: int
) -> None:
    weight_NK = random_matrix(40, 900)
    weight_NK[5, 870] = torch.nan
    weight_NK[7, 3] = torch.inf
    x_MK = random_matrix(num_rows, 900, seed=1)
    x_MK[1, 500] = -torch.inf
    x_MK[2, 0] = torch.nan
    y_MN = matmul(team, PackedMatrix(team, weight_NK, weight_type), x_MK)
    wanted_MN = (x_MK.double() @ weight_NK.double().T).float()
    assert torch.equal(y_MN.isnan(), wanted_MN.isnan())
    assert torch.equal(y_MN.isinf(), wanted_MN.isinf())
    assert torch.equal(y_MN[y_MN.isinf()], wanted_MN[wanted_MN.isinf()])
    assert y_MN.isfinite().sum() == (num_rows - 2) * 38


@pytest.mark.parametrize("weight_type", list(WeightType))
@pytest.mark.parametrize("ordering", list(Ordering))
@pytest.mark.parametrize("depth", [700, 4200])
def test_a_row_has_the_same_bits_in_every_batch(
    team: Team, weight_type: WeightType, ordering: Ordering, depth: int
) -> None:
    """Also where K is so long that it is cut for many rows."""
    matrix = PackedMatrix(team, random_matrix(70, depth), weight_type)
    x_MK = random_matrix(600, depth, seed=2)
    alone = [matmul(team, matrix, x_MK[row : row + 1], ordering=ordering) for row in (0, 5, 37)]
    for num_rows in (38, 40, 100, 600):
        y_MN = matmul(team, matrix, x_MK[:num_rows], ordering=ordering)
        assert torch.equal(y_MN[[0, 5, 37]], torch.cat(alone))


@pytest.mark.parametrize("num_rows", [45, 1100])
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_the_number_of_threads_changes_no_bit(num_threads: int, num_rows: int) -> None:
    """Also where the rows are several chunks, each of which is shared among the threads."""
    weight_NK = random_matrix(200, 96)
    x_MK = random_matrix(num_rows, 96, seed=3)
    results = []
    for count in (1, num_threads):
        with Team(load_kernel(), count) as team:
            matrix = PackedMatrix(team, weight_NK, WeightType.BF16)
            results.append(matmul(team, matrix, x_MK))
    assert torch.equal(*results)


def test_bf16_weights_survive_packing_bit_for_bit(team: Team) -> None:
    weight_NK = random_matrix(45, 77).bfloat16()
    up_NK = random_matrix(45, 77, seed=4).bfloat16()
    unpacked_NK, nothing = PackedMatrix(team, weight_NK, WeightType.BF16).unpack(team)
    assert torch.equal(unpacked_NK.bfloat16(), weight_NK)
    assert nothing is None
    gate_NK, unpacked_up_NK = PackedMatrix(team, weight_NK, WeightType.BF16, up_NK).unpack(team)
    assert torch.equal(gate_NK.bfloat16(), weight_NK)
    assert unpacked_up_NK is not None
    assert torch.equal(unpacked_up_NK.bfloat16(), up_NK)


def test_float32_is_rounded_to_bf16_as_torch_does(team: Team) -> None:
    weight_NK = torch.cat([random_matrix(40, 64), torch.tensor([[0.0, -0.0, 1e-40, 3e38] * 16])])
    unpacked_NK, _ = PackedMatrix(team, weight_NK, WeightType.BF16).unpack(team)
    assert torch.equal(unpacked_NK.bfloat16(), weight_NK.bfloat16())


def test_int8_stays_near_the_weights(team: Team) -> None:
    """Weights are within half a step of their column, a random product within about 1 %."""
    weight_NK = random_matrix(64, 512)
    matrix = PackedMatrix(team, weight_NK, WeightType.INT8)
    unpacked_NK, _ = matrix.unpack(team)
    step_N1 = weight_NK.abs().amax(1, keepdim=True) / 127
    assert ((unpacked_NK - weight_NK).abs() <= 0.501 * step_N1).all()
    x_MK = random_matrix(9, 512, seed=5)
    wanted_MN = (x_MK @ weight_NK.T).double()
    error = (matmul(team, matrix, x_MK) - wanted_MN).norm() / wanted_MN.norm()
    assert error < 0.015


def test_rows_of_zeros_are_zero_in_int8(team: Team) -> None:
    matrix = PackedMatrix(team, random_matrix(40, 70), WeightType.INT8)
    assert torch.equal(matmul(team, matrix, torch.zeros(3, 70)), torch.zeros(3, 40))


def gated_reference(epilogue: Epilogue, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    if epilogue is Epilogue.SILU_MUL:
        return F.silu(gate) * up
    if epilogue is Epilogue.GELU_TANH_MUL:
        return F.gelu(gate, approximate="tanh") * up
    gate, up = gate.clamp(max=2.0), up.clamp(-2.0, 2.0)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


@pytest.mark.parametrize(
    "epilogue", [Epilogue.SILU_MUL, Epilogue.GELU_TANH_MUL, Epilogue.CLAMPED_SWIGLU]
)
@pytest.mark.parametrize("weight_type", [WeightType.F32, WeightType.BF16])
def test_gated_products(team: Team, epilogue: Epilogue, weight_type: WeightType) -> None:
    gate_NK, up_NK = random_matrix(37, 90), random_matrix(37, 90, seed=6)
    gate_bias_N, up_bias_N = random_matrix(37, seed=7), random_matrix(37, seed=8)
    matrix = PackedMatrix(team, gate_NK, weight_type, up_NK)
    bias = matrix.pack_bias(gate_bias_N, up_bias_N)
    halves = matrix.unpack(team)
    assert halves[1] is not None
    for num_rows in (1, 16, 35, 70):
        x_MK = random_matrix(num_rows, 90, seed=num_rows) * 0.5
        rows_MK = as_multiplied(x_MK, weight_type)
        gate_MN = rows_MK @ halves[0].double().T + gate_bias_N
        up_MN = rows_MK @ halves[1].double().T + up_bias_N
        y_MN = matmul(team, matrix, x_MK, epilogue=epilogue, bias=bias, limit=2.0)
        assert_near(y_MN, gated_reference(epilogue, gate_MN, up_MN), 2e-6)


def test_bias_scale_and_sum(team: Team) -> None:
    matrix = PackedMatrix(team, random_matrix(45, 64), WeightType.F32)
    bias_N = random_matrix(45, seed=9)
    x_MK = random_matrix(18, 64, seed=10)
    before_MN = random_matrix(18, 45, seed=11)
    y_MN = before_MN.clone()
    bias = matrix.pack_bias(bias_N)
    matmul(team, matrix, x_MK, epilogue=Epilogue.ADD, bias=bias, out_MN=y_MN, scale=0.25)
    wanted_MN = before_MN + 0.25 * reference(x_MK, matrix, team) + bias_N
    assert_near(y_MN, wanted_MN, 1e-6)


def test_nothing_is_written_beside_the_result(team: Team) -> None:
    matrix = PackedMatrix(team, random_matrix(33, 64), WeightType.BF16)
    whole = torch.full((20, 40), 7.0)
    matmul(team, matrix, random_matrix(18, 64), out_MN=whole[1:19, 3:36])
    untouched = whole.clone()
    untouched[1:19, 3:36] = 7.0
    assert torch.equal(untouched, torch.full((20, 40), 7.0))
    assert not (whole[1:19, 3:36] == 7.0).any()


def test_no_rows_are_no_work(team: Team) -> None:
    matrix = PackedMatrix(team, random_matrix(33, 64), WeightType.BF16)
    assert matmul(team, matrix, torch.empty(0, 64)).shape == (0, 33)


def test_mismatching_shapes_are_refused(team: Team) -> None:
    weight_NK = random_matrix(33, 64)
    matrix = PackedMatrix(team, weight_NK, WeightType.BF16)
    with pytest.raises(ConfigError, match=r"give float32 \[M, 64\]"):
        matmul(team, matrix, random_matrix(2, 63))
    with pytest.raises(ConfigError, match="SILU_MUL does not fit a plain matrix"):
        matmul(team, matrix, random_matrix(2, 64), epilogue=Epilogue.SILU_MUL)
    with pytest.raises(ConfigError, match=r"\[2, 33\]"):
        matmul(team, matrix, random_matrix(2, 64), out_MN=torch.empty(2, 32))
    with pytest.raises(ConfigError, match="give rows of float32 or bfloat16"):
        PackedMatrix(team, weight_NK.half(), WeightType.BF16)
    with pytest.raises(ConfigError, match="one shape, type and stride"):
        PackedMatrix(team, weight_NK, WeightType.BF16, random_matrix(32, 64))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_weights_lie_in_private_memory() -> None:
    """Shared anonymous memory gets no huge pages with a system's default settings."""
    buffer = huge_page_buffer(4 << 20)
    address = buffer.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions = line.split()[:2]
        first, last = (int(one, 16) for one in span.split("-"))
        if first <= address < last:
            assert permissions == "rw-p"
            return
    pytest.fail("the buffer lies in no mapping")
