"""Attention with windows, soft-caps and sinks equals its definition, written out token by token."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from quire.engine.attention.backend import AttentionAttributes, AttentionRows
from quire.engine.attention.reference import TorchAttention
from quire.engine.kv_cache.page_tables import PageLists
from quire.engine.kv_cache.torch_pool import LayerCache

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 6, 2, 8
PAGE_SIZE, NUM_BLOCKS = 4, 16
NULL_SLOT = NUM_BLOCKS * PAGE_SIZE

ATTRIBUTES = {
    "plain": AttentionAttributes(scale=0.3),
    "window": AttentionAttributes(scale=0.3, window=5),
    "window of one": AttentionAttributes(scale=0.3, window=1),
    "soft-cap": AttentionAttributes(scale=0.9, softcap=1.5),
    "sinks": AttentionAttributes(scale=0.3, sinks_N=torch.linspace(-1.0, 2.0, NUM_HEADS)),
    "all": AttentionAttributes(
        scale=0.9, window=4, softcap=2.0, sinks_N=torch.linspace(-1.0, 2.0, NUM_HEADS)
    ),
}


class Case:
    """Three rows over shared pages: a chunk, a chunk with an explicit mask, and a single token."""

    def __init__(self, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.positions_S = np.full(NULL_SLOT + 1, -1, np.int32)
        self.positions_S[:NULL_SLOT] = random.permutation(NULL_SLOT) // 3
        self.tables = [[3, 0, 7], [5, 9], [2, 11, 1, 6]]
        self.visible = [random.integers(0, 16, len(blocks)) for blocks in self.tables]
        self.new = [
            {"slots": [13, 29, 30, 12], "positions": [21, 22, 23, 25]},
            {"slots": [38, 37, 36], "positions": [9, 9, 14]},
            {"slots": [27], "positions": [19]},
        ]
        for row in self.new:
            self.positions_S[row["slots"]] = row["positions"]
        self.masks = {1: random.random((3, 2 * PAGE_SIZE + 3)) < 0.5}
        self.masks[1][0] = False
        generator = torch.Generator().manual_seed(seed)

        def draw(count: int, heads: int) -> torch.Tensor:
            return torch.randn(count, heads, HEAD_DIM, generator=generator)

        self.cache = LayerCache(
            draw(NULL_SLOT + 1, NUM_KV_HEADS), draw(NULL_SLOT + 1, NUM_KV_HEADS)
        )
        self.q_TND = draw(8, NUM_HEADS)

    def rows(self, numbers: list[int], masks: Mapping[int, NDArray[np.bool_]]) -> AttentionRows:
        new = [self.new[number] for number in numbers]
        counts = [len(row["slots"]) for row in new]
        pages = [len(self.tables[number]) for number in numbers]
        return AttentionRows(
            row_starts=np.cumsum([0, *counts]),
            positions=np.concatenate([row["positions"] for row in new]).astype(np.int32),
            slots=np.concatenate([row["slots"] for row in new]).astype(np.int64),
            pages=PageLists(
                starts=np.cumsum([0, *pages]),
                blocks=np.concatenate([self.tables[n] for n in numbers]).astype(np.int32),
                visible=np.concatenate([self.visible[n] for n in numbers]).astype(np.uint64),
            ),
            slot_positions=self.positions_S,
            page_size=PAGE_SIZE,
            masks=masks,
        )

    def seen(self, number: int, token: int, window: int | None, masked: bool) -> list[int]:
        """Flat slots that a new token of a row sees."""
        new = self.new[number]
        position = new["positions"][token]
        table = [
            (entry * PAGE_SIZE + offset, block * PAGE_SIZE + offset)
            for entry, block in enumerate(self.tables[number])
            for offset in range(PAGE_SIZE)
            if self.visible[number][entry] >> offset & 1
            and block * PAGE_SIZE + offset not in new["slots"]
        ]
        first_new = len(self.tables[number]) * PAGE_SIZE
        table += [(first_new + i, slot) for i, slot in enumerate(new["slots"])]
        slots = []
        for column, slot in table:
            other = int(self.positions_S[slot])
            if masked:
                shown = bool(self.masks[number][token, column])
            else:
                shown = other < position or slot == new["slots"][token]
            if shown and (window is None or other > position - window):
                slots.append(slot)
        return slots

    def expected(
        self, q_ND: torch.Tensor, slots: list[int], attributes: AttentionAttributes
    ) -> torch.Tensor:
        out = torch.zeros(NUM_HEADS, HEAD_DIM, dtype=torch.float64)
        for head in range(NUM_HEADS if slots else 0):
            kv_head = head // (NUM_HEADS // NUM_KV_HEADS)
            keys = self.cache.keys_SKD[slots, kv_head].double()
            scores = keys @ q_ND[head].double() * attributes.scale
            if attributes.softcap is not None:
                scores = attributes.softcap * torch.tanh(scores / attributes.softcap)
            weights = scores.exp()
            total = weights.sum()
            if attributes.sinks_N is not None:
                total = total + attributes.sinks_N[head].double().exp()
            out[head] = weights / total @ self.cache.values_SKD[slots, kv_head].double()
        return out.flatten()


def backend() -> TorchAttention:
    return TorchAttention(torch.device("cpu"), torch.float32, NULL_SLOT)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("attributes", ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_ragged_rows(attributes: AttentionAttributes, seed: int) -> None:
    case = Case(seed)
    plan = backend().plan(case.rows([0, 1, 2], case.masks))
    out = plan.attend(case.q_TND, case.cache, attributes)
    token = 0
    for number, row in enumerate(case.new):
        for place in range(len(row["slots"])):
            slots = case.seen(number, place, attributes.window, masked=number in case.masks)
            wanted = case.expected(case.q_TND[token], slots, attributes)
            assert torch.allclose(out[token].double(), wanted, atol=1e-5), (number, place)
            token += 1


def test_one_plan_serves_layers_of_all_kinds() -> None:
    case = Case()
    plan = backend().plan(case.rows([0, 1, 2], case.masks))
    together = [plan.attend(case.q_TND, case.cache, one) for one in ATTRIBUTES.values()]
    for attributes, out in zip(ATTRIBUTES.values(), together, strict=True):
        alone = backend().plan(case.rows([0, 1, 2], case.masks))
        assert torch.equal(out, alone.attend(case.q_TND, case.cache, attributes))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("attributes", ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_decode_steps(attributes: AttentionAttributes, seed: int) -> None:
    """Two rows advance over pages with gaps, whose later positions become visible on the way; then
    one of them advances alone."""
    case = Case(seed)
    case.new = [
        {"slots": [52], "positions": [15]},
        {"slots": [53], "positions": [3]},
        {"slots": [54], "positions": [10]},
    ]
    steps = [([52, 53], [15, 3]), ([56, 57], [16, 4]), ([60, 61], [17, 5])]
    case.positions_S[[52, 53]] = [15, 3]
    plan = backend().plan_decode(case.rows([0, 1], {}), num_steps=4)
    written: list[list[int]] = [[], []]
    for slots, positions in steps:
        case.positions_S[slots] = positions
        plan.advance(np.array(slots), np.array(positions, np.int32))
        out = plan.attend(case.q_TND[:2], case.cache, attributes)
        for row in range(2):
            written[row].append(slots[row])
            case.new[row] = {
                "slots": written[row],
                "positions": [int(case.positions_S[slot]) for slot in written[row]],
            }
            seen = case.seen(row, len(written[row]) - 1, attributes.window, masked=False)
            wanted = case.expected(case.q_TND[row], seen, attributes)
            assert torch.allclose(out[row].double(), wanted, atol=1e-5)
    plan.keep(np.array([1]))
    case.positions_S[62] = 6
    plan.advance(np.array([62]), np.array([6], np.int32))
    out = plan.attend(case.q_TND[:1], case.cache, attributes)
    case.new[1] = {
        "slots": [*written[1], 62],
        "positions": [*case.new[1]["positions"], 6],
    }
    seen = case.seen(1, 3, attributes.window, masked=False)
    wanted = case.expected(case.q_TND[0], seen, attributes)
    assert torch.allclose(out[0].double(), wanted, atol=1e-5)
