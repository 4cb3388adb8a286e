"""The Triton attention kernel equals the reference; in the interpreter where there is no device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_cases import EVERYTHING, Case, RowShape, make_case
from triton_mode import DEVICE, runs_triton

from quire.engine.attention.backend import AttentionAttributes
from quire.engine.cuda import attention_launch
from quire.engine.cuda.triton_attention import TritonAttention

pytestmark = runs_triton


SCALE = 0.3


def backend(case: Case, *, batch_invariant: bool = False) -> TritonAttention:
    num_heads, num_kv_heads = case.q_TND.shape[1], case.cache.keys_SKD.shape[1]
    return TritonAttention(
        case.q_TND.device,
        torch.from_numpy(case.rows.slot_positions).to(case.q_TND.device),
        num_heads // num_kv_heads,
        num_kv_heads,
        batch_invariant,
    )


def attributes(case: Case, kind: str) -> AttentionAttributes:
    sinks = torch.linspace(-1, 2, case.q_TND.shape[1], device=case.q_TND.device)
    return {
        "plain": AttentionAttributes(SCALE),
        "window": AttentionAttributes(SCALE, window=7),
        "softcap": AttentionAttributes(SCALE, softcap=2.0),
        "sinks": AttentionAttributes(SCALE, window=11, sinks_N=sinks),
    }[kind]


@pytest.mark.parametrize("kind", ["plain", "window", "softcap", "sinks"])
@pytest.mark.parametrize("page_size", [1, 5, 16, 64])
def test_every_kind_of_row(page_size: int, kind: str) -> None:
    case = make_case(EVERYTHING, page_size=page_size, device=DEVICE)
    asked = attributes(case, kind)
    out = backend(case).plan(case.rows).attend(case.q_TND, case.cache, asked)
    torch.testing.assert_close(out, case.expected(asked), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", [(6, 2, 12), (5, 1, 80), (3, 3, 64), (24, 1, 8)])
def test_shapes_of_heads(heads: tuple[int, int, int]) -> None:
    case = make_case(EVERYTHING, page_size=16, heads=heads, device=DEVICE)
    asked = AttentionAttributes(SCALE)
    out = backend(case).plan(case.rows).attend(case.q_TND, case.cache, asked)
    torch.testing.assert_close(out, case.expected(asked), atol=2e-5, rtol=1e-5)


def test_one_plan_serves_layers_with_different_windows() -> None:
    case = make_case(EVERYTHING, page_size=16, device=DEVICE)
    plan = backend(case).plan(case.rows)
    for kind in ("window", "plain", "sinks"):
        asked = attributes(case, kind)
        out = plan.attend(case.q_TND, case.cache, asked)
        torch.testing.assert_close(out, case.expected(asked), atol=2e-5, rtol=1e-5)


def test_long_rows_are_split_and_merged() -> None:
    case = make_case((RowShape(600, 1), RowShape(3, 1)), page_size=16, device=DEVICE)
    tested = backend(case)
    [(_, tiling)] = tested.tilings(np.arange(2), np.ones(2, np.int64), 640)
    assert tiling.split_columns is not None
    assert tiling.split_columns < 600
    for kind in ("plain", "window", "sinks"):
        asked = attributes(case, kind)
        out = tested.plan(case.rows).attend(case.q_TND, case.cache, asked)
        torch.testing.assert_close(out, case.expected(asked), atol=2e-5, rtol=1e-5)


def test_parts_are_merged_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_launch, "_MERGED_PARTS", 4)
    case = make_case((RowShape(1400, 1), RowShape(5, 1)), page_size=16, device=DEVICE)
    tested = backend(case)
    [(_, tiling)] = tested.tilings(np.arange(2), np.ones(2, np.int64), 1424)
    assert tiling.split_columns is not None
    assert 1400 / tiling.split_columns > 4
    for kind in ("plain", "sinks"):
        asked = attributes(case, kind)
        out = tested.plan(case.rows).attend(case.q_TND, case.cache, asked)
        torch.testing.assert_close(out, case.expected(asked), atol=2e-5, rtol=1e-5)


def test_batch_invariant_rows_do_not_depend_on_the_batch() -> None:
    case = make_case(EVERYTHING, page_size=16, device=DEVICE)
    asked = AttentionAttributes(SCALE)
    tested = backend(case, batch_invariant=True)
    whole = tested.plan(case.rows).attend(case.q_TND, case.cache, asked)
    torch.testing.assert_close(whole, case.expected(asked), atol=2e-5, rtol=1e-5)
    for row in range(case.rows.num_rows):
        alone = case.tokens([row])
        out = tested.plan(alone.rows).attend(alone.q_TND, alone.cache, asked)
        tokens = slice(int(case.rows.row_starts[row]), int(case.rows.row_starts[row + 1]))
        assert torch.equal(out, whole[tokens]), f"row {row}"


def test_batch_invariant_chunks_equal_the_whole_prompt() -> None:
    case = make_case((RowShape(0, 40),), page_size=16, device=DEVICE)
    asked = AttentionAttributes(SCALE)
    tested = backend(case, batch_invariant=True)
    whole = tested.plan(case.rows).attend(case.q_TND, case.cache, asked)
    for start, end in ((0, 7), (7, 39), (39, 40)):
        chunk = case.tokens([0], start, end)
        out = tested.plan(chunk.rows).attend(chunk.q_TND, chunk.cache, asked)
        assert torch.equal(out, whole[start:end])


@pytest.mark.parametrize("kind", ["plain", "window"])
def test_decoding_step_by_step(kind: str) -> None:
    """Rows that advance and end, against a fresh plan of the reference for every step."""
    shapes = (RowShape(15, 5), RowShape(30, 5, "gapped"), RowShape(0, 5), RowShape(7, 5, "holes"))
    case = make_case(shapes, page_size=4, device=DEVICE)
    asked = attributes(case, kind)
    rows = [0, 1, 2, 3]
    plan = backend(case).plan_decode(case.tokens(rows, 0, 1).rows, 5)
    for step in range(5):
        if step == 3:
            plan.keep(np.array([3, 0]))
            rows = [3, 0]
        now = case.tokens(rows, step, step + 1)
        plan.advance(now.rows.slots, now.rows.positions)
        out = plan.attend(now.q_TND, now.cache, asked)
        torch.testing.assert_close(out, now.expected(asked), atol=2e-5, rtol=1e-5)


def test_slots_that_no_token_sees_are_not_read() -> None:
    """Slots that a later step will write are visible already, with another sequence's data."""
    case = make_case((RowShape(40, 1, "gapped"), RowShape(9, 1)), page_size=16, device=DEVICE)
    asked = AttentionAttributes(SCALE)
    expected = case.expected(asked)
    beyond = torch.from_numpy(case.rows.slot_positions > int(case.rows.positions[0]))
    assert beyond.any()
    case.cache.keys_SKD[beyond.to(DEVICE)] = torch.nan
    case.cache.values_SKD[beyond.to(DEVICE)] = torch.nan
    out = backend(case).plan(case.rows).attend(case.q_TND, case.cache, asked)
    torch.testing.assert_close(out, expected, atol=2e-5, rtol=1e-5)
