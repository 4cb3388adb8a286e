"""The calls to FlashInfer give the reference's results, by the library's documented semantics."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import flashinfer_emulator
import numpy as np
import pytest
import torch
from attention_cases import EVERYTHING, Case, RowShape, make_case

from quire.engine.attention.backend import AttentionAttributes
from quire.engine.cuda import cascade, optional
from quire.engine.cuda.attention import CudaAttention
from quire.engine.cuda.cascade import find_shared
from quire.engine.cuda.flashinfer_attention import FlashInfer, FlashInferPlan, with_sinks
from quire.engine.cuda.flashinfer_plan import RequestSegment, segments, visible_keys
from quire.engine.cuda.page_entries import page_entries
from quire.engine.cuda.triton_attention import TritonAttention
from quire.engine.layers.attention import AttentionConfig
from quire.engine.layers.norm import NormConfig
from quire.engine.models.decoder_config import DecoderConfig, LayerConfig

SCALE = 0.3


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer_emulator)
    optional.flashinfer_missing.cache_clear()
    yield
    optional.flashinfer_missing.cache_clear()


def attend(case: Case, attributes: AttentionAttributes) -> torch.Tensor:
    _, num_heads, head_dim = case.q_TND.shape
    library = FlashInfer(num_heads, case.cache.keys_SKD.shape[1], head_dim, torch.device("cpu"))
    entries = page_entries(case.rows)
    plan = FlashInferPlan(library, case.rows, entries, np.arange(case.rows.num_rows))
    out = torch.zeros_like(case.q_TND)
    plan.attend_into(case.q_TND, case.cache, attributes, out)
    return out.flatten(1)


def assert_equal(case: Case, attributes: AttentionAttributes) -> None:
    torch.testing.assert_close(
        attend(case, attributes), case.expected(attributes), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("page_size", [1, 5, 16, 64])
@pytest.mark.parametrize("window", [None, 7])
def test_every_kind_of_row(page_size: int, window: int | None) -> None:
    case = make_case(EVERYTHING, page_size=page_size)
    assert_equal(case, AttentionAttributes(SCALE, window=window))


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_sinks_and_softcaps(softcap: float | None) -> None:
    case = make_case(EVERYTHING, page_size=16)
    sinks = torch.linspace(-2, 3, case.q_TND.shape[1])
    assert_equal(case, AttentionAttributes(SCALE, window=9, softcap=softcap, sinks_N=sinks))


def made_segments(case: Case, window: int | None = None) -> list[RequestSegment]:
    entries = page_entries(case.rows)
    members = np.arange(case.rows.num_rows)
    return segments(case.rows, entries, visible_keys(case.rows, entries, members), members, window)


def test_plain_rows_go_in_as_pages_and_the_others_as_slots() -> None:
    case = make_case(EVERYTHING, page_size=16)
    paged, listed, masked = made_segments(case)
    assert (paged.page_size, listed.page_size, masked.page_size) == (16, 1, 1)
    assert paged.mask is None
    assert listed.mask is None
    assert masked.mask is not None
    plain = [0, 1, 2, 12, 13]
    starts = case.rows.row_starts
    assert paged.tokens.tolist() == [t for r in plain for t in range(starts[r], starts[r + 1])]
    listed_rows = np.searchsorted(starts, listed.tokens, side="right") - 1
    # once slots are sorted, holes and new tokens in the order of positions need no mask
    assert {3, 4, 6, 8, 9} <= set(listed_rows.tolist())
    masked_rows = np.searchsorted(starts, masked.tokens, side="right") - 1
    assert {10, 11} <= set(masked_rows.tolist())


def test_single_tokens_never_need_a_mask() -> None:
    shapes = tuple(RowShape(30, 1, kind) for kind in ("plain", "holes", "gapped", "scratch"))
    assert all(segment.mask is None for segment in made_segments(make_case(shapes, page_size=4)))


def test_windows_count_places_only_where_positions_follow_one_another() -> None:
    case = make_case((RowShape(30, 2), RowShape(20, 2, "holes")), page_size=4)
    paged, masked = made_segments(case, window=5)
    assert paged.page_size == 4
    assert masked.mask is not None
    # slots outside of every token's window are not read
    assert len(masked.kv_indices) <= 5 + 1


def shared_segment(suffixes: list[int], num_shared: int, page_size: int) -> RequestSegment:
    rows, block = [], 100
    for pages in suffixes:
        rows.append([*range(num_shared), *range(block, block + pages)])
        block += pages
    return RequestSegment(
        tokens=np.arange(len(rows)),
        qo_indptr=np.arange(len(rows) + 1, dtype=np.int32),
        kv_indptr=np.cumsum([0] + [len(row) for row in rows]).astype(np.int32),
        kv_indices=np.array([page for row in rows for page in row], np.int32),
        last_page_len=np.full(len(rows), 3, np.int32),
        page_size=page_size,
    )


def test_shared_pages_are_found_once() -> None:
    levels = find_shared(shared_segment([2, 1, 3], 200, 16))
    assert levels is not None
    assert levels.rest is None
    assert levels.shared.kv_indices.tolist() == list(range(200))
    assert levels.shared.qo_indptr.tolist() == [0, 3]
    assert levels.shared.last_page_len.tolist() == [16]
    assert levels.own.kv_indptr.tolist() == [0, 2, 3, 6]
    assert levels.own.kv_indices.tolist() == list(range(100, 106))
    assert levels.own.last_page_len.tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    ("suffixes", "num_shared"),
    [([2, 2], 10), ([600, 600], 300), ([1], 500)],
    ids=["few slots", "a small share", "one row"],
)
def test_sharing_that_does_not_pay_is_left(suffixes: list[int], num_shared: int) -> None:
    segment = shared_segment(suffixes, num_shared, 16)
    segment.kv_indices[segment.kv_indices >= 100] += 1000
    assert find_shared(segment) is None


def test_cascade_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cascade, "LEAST_SAVED_SLOTS", 16)
    case = make_case(tuple(RowShape(64, 1) for _ in range(5)), page_size=16)
    pages = case.rows.pages
    for row in (1, 2, 4):  # 5 pages each; the first four become those of row 1
        pages.blocks[5 * row : 5 * row + 4] = pages.blocks[5:9]
    found = find_shared(made_segments(case)[0])
    assert found is not None
    assert found.tokens.tolist() == [1, 2, 4]
    assert found.rest is not None
    assert_equal(case, AttentionAttributes(SCALE))
    assert_equal(case, AttentionAttributes(SCALE, softcap=3.0))
    assert_equal(case, AttentionAttributes(SCALE, sinks_N=torch.ones(4)))


def test_sinks_take_their_share() -> None:
    out, lse = torch.ones(2, 3, 4), torch.tensor([[0.0, 1.0, -torch.inf]] * 2)
    shared = with_sinks(out, lse, torch.zeros(3))
    assert shared[0, :, 0].tolist() == pytest.approx([0.5, 2 / 3, 0.0])


def chosen(config: DecoderConfig) -> CudaAttention:
    device = torch.device("cpu")
    triton = TritonAttention(device, torch.zeros(8, dtype=torch.int32), 2, 2)
    return CudaAttention.choose(triton, config, torch.bfloat16)


def shape_of(window: int | None) -> DecoderConfig:
    attention = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=64, scale=0.1, softcap=3.0)
    return DecoderConfig(
        vocab_size=8,
        hidden_size=8,
        max_positions=8,
        attention=attention,
        layers=(LayerConfig(window=window), LayerConfig(), LayerConfig(window=window)),
        ropes=(),
        norm=NormConfig(1e-6),
        mlp=None,
    )


def test_every_kind_of_attention_is_tried_out_before_the_first_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[tuple[int, bool]] = []
    original = FlashInfer.prefill

    def spy(
        self: FlashInfer, segment: RequestSegment, attributes: AttentionAttributes, *rest: Any
    ) -> Any:
        tried.append((attributes.window or 0, segment.mask is not None))
        return original(self, segment, attributes, *rest)

    monkeypatch.setattr(FlashInfer, "prefill", spy)
    assert chosen(shape_of(window=5)).name == "flashinfer"
    assert tried == [(5, False), (5, True), (0, False), (0, True)]


def test_kernels_that_cannot_be_compiled_leave_all_rows_to_triton(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("Could not find nvcc")

    monkeypatch.setattr(flashinfer_emulator.BatchPrefillWithPagedKVCacheWrapper, "plan", refuse)
    assert chosen(shape_of(window=None)).name == "triton"
    assert "Could not find nvcc" in caplog.text
    assert "flashinfer-jit-cache" in caplog.text
