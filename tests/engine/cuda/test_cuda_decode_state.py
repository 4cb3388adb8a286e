"""The decode state on the device equals a loop over rows on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from attention_cases import RowShape, make_case
from torch.utils._python_dispatch import TorchDispatchMode
from triton_mode import DEVICE, runs_triton

from quire.core.batch import no_i32
from quire.core.decoding import SamplerSpec
from quire.engine.cuda import decode_state
from quire.engine.cuda.decode_state import DecodeState
from quire.engine.model_runner import FusedRows
from quire.engine.sampling.plan import SamplingPlan
from quire.engine.sampling.table import SamplingRow
from quire.engine.sequences import NO_TOKEN

IDLE = 999
VOCAB = 12


class NoWaiting(TorchDispatchMode):
    """Refuses operations that make the host wait for the device, or whose shape depends on data."""

    _WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        assert name not in self._WAITING, f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


def fused_rows(
    steps: list[int], num_steps: int, stops: list[list[int]], minimums: list[int]
) -> FusedRows:
    case = make_case(tuple(RowShape(5 + row, 1) for row in range(len(steps))), page_size=4)
    width = max(len(one) for one in stops)
    padded = [one + [NO_TOKEN] * (width - len(one)) for one in stops]
    rows = [SamplingRow(SamplerSpec(), no_i32(), no_i32()) for _ in steps]
    return FusedRows(
        rows=case.rows,
        tokens_R=np.arange(len(steps)) + 1,
        cursors_R=case.rows.positions.astype(np.int64),
        slots_RS=100 * np.arange(len(steps))[:, None] + np.arange(num_steps),
        steps_R=np.array(steps, np.int64),
        stop_tokens_RW=np.array(padded, np.int64),
        min_steps_R=np.array(minimums, np.int64),
        sampling=SamplingPlan(rows, VOCAB, torch.device("cpu")),
    )


def simulate(
    rows: FusedRows, sampled_SR: np.ndarray[Any, Any], chosen_SR: np.ndarray[Any, Any]
) -> tuple[list[list[int]], list[bool], list[bool], list[list[tuple[int, int, int]]]]:
    """Tokens, stopped and failed by row, and what each row ran: (token, position, slot)."""
    tokens: list[list[int]] = []
    stopped, failed, ran = [], [], []
    for row in range(len(rows.tokens_R)):
        token, position = int(rows.tokens_R[row]), int(rows.rows.positions[row])
        own: list[int] = []
        runs: list[tuple[int, int, int]] = []
        ended = failure = False
        for step in range(rows.num_steps):
            if ended or failure or len(own) >= rows.steps_R[row]:
                break
            runs.append((token, position, int(rows.slots_RS[row, step])))
            failure = not chosen_SR[step, row]
            if not failure:
                token, position = int(sampled_SR[step, row]), position + 1
                own.append(token)
                ended = token in rows.stop_tokens_RW[row]
        tokens.append(own)
        stopped.append(ended)
        failed.append(failure)
        ran.append(runs)
    return tokens, stopped, failed, ran


@pytest.mark.parametrize("seed", range(12))
def test_against_a_loop_over_rows(seed: int) -> None:
    random = np.random.default_rng(seed)
    num_rows, num_steps, size = int(random.integers(1, 6)), int(random.integers(1, 7)), 6
    rows = fused_rows(
        random.integers(1, 9, num_rows).tolist(),
        num_steps,
        [random.integers(0, VOCAB, random.integers(0, 4)).tolist() for _ in range(num_rows)],
        [0] * num_rows,
    )
    sampled = random.integers(0, VOCAB, (num_steps, size))
    chosen = random.random((num_steps, size)) > 0.1
    tokens, stopped, failed, ran = simulate(rows, sampled, chosen)

    state = DecodeState(8, 8, 4, IDLE, torch.device("cpu"))
    state.begin(fused_rows([8] * 5, 8, [[1]] * 5, [0] * 5), 8)  # the previous content is gone
    state.begin(rows, size)
    for step in range(num_steps):
        for row in range(num_rows):
            now = (
                int(state.tokens_B[row]), int(state.positions_B[row]), int(state.slots_B[row]),
            )  # fmt: skip
            if step < len(ran[row]):
                assert now == ran[row][step]
            else:
                assert now[2] == IDLE
        with NoWaiting():
            state.settle(torch.from_numpy(sampled[step]), torch.from_numpy(chosen[step]))
    assert state.slots_B[num_rows:size].tolist() == [IDLE] * (size - num_rows)
    done = state.finish(rows, num_steps)
    assert [column[column != NO_TOKEN].tolist() for column in done.tokens_SR.T] == tokens
    assert done.counts_R.tolist() == [len(one) for one in tokens]
    assert done.stopped_R.tolist() == stopped
    assert done.failed_R.tolist() == failed


@runs_triton
@pytest.mark.parametrize("seed", range(4))
def test_the_kernel_does_what_the_operations_do(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_state, "_BLOCK", 4)  # more rows than one block of the kernel
    random = np.random.default_rng(seed)
    num_rows, size = 7, 8
    rows = fused_rows(
        random.integers(1, 6, num_rows).tolist(),
        5,
        [random.integers(0, VOCAB, random.integers(0, 4)).tolist() for _ in range(num_rows)],
        [0] * num_rows,
    )
    tested, expected = (DecodeState(9, 6, 3, IDLE, torch.device(DEVICE)) for _ in range(2))
    for state in (tested, expected):
        state.begin(rows, size)
    for _ in range(5):
        tokens = torch.from_numpy(random.integers(0, VOCAB, size)).to(DEVICE)
        best = torch.from_numpy(random.normal(size=size).astype(np.float32)).to(DEVICE)
        best[random.random(size) < 0.1] = random.choice([np.nan, np.inf, -np.inf])
        tested.launch_settle(tokens, best)
        expected.settle(tokens, torch.isfinite(best))
        for name, value in vars(expected).items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(getattr(tested, name), value), name


def test_early_stops_are_excluded_by_row_and_step() -> None:
    rows = fused_rows([8, 8, 8], 4, [[3, 5], [5, VOCAB + 7], []], [2, 1, 3])
    state = DecodeState(4, 8, 3, IDLE, torch.device("cpu"))
    state.begin(rows, 4)
    logits = torch.arange(VOCAB, dtype=torch.float32).repeat(3, 1)
    expected = [[[3, 5], [5], []], [[3, 5], [], []], [[], [], []]]
    for excluded in expected:
        with NoWaiting():
            bounded = state.without_early_stops(logits)
        assert [torch.isinf(row).nonzero()[:, 0].tolist() for row in bounded] == excluded
        kept = ~torch.isinf(bounded)
        assert torch.equal(bounded[kept], logits[kept])
        state.settle(torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.bool))


def test_rows_that_exceed_the_memory_are_recognised() -> None:
    state = DecodeState(2, 3, 1, IDLE, torch.device("cpu"))
    assert state.holds(fused_rows([1, 1], 3, [[1], [2]], [0, 0]))
    assert not state.holds(fused_rows([1] * 3, 3, [[1]] * 3, [0] * 3))
    assert not state.holds(fused_rows([1], 4, [[1]], [0]))
    assert not state.holds(fused_rows([1], 3, [[1, 2]], [0]))
