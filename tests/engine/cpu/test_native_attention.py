"""The kernel's attention equals the PyTorch reference on every instruction set of this machine."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from attention_cases import EVERYTHING, Case, RowShape, make_case

from quire.engine.attention.backend import AttentionAttributes
from quire.engine.cpu.library import INSTRUCTION_SETS, kernel_report, load_kernel
from quire.engine.cpu.model_abi import (
    SIGNATURES,
    AttentionArguments,
    LayerAttention,
    RowMask,
    StepArguments,
)
from quire.engine.cpu.packed_matrix import Ordering
from quire.engine.cpu.team import Team

PROBLEMS = {state.isa: state.problem for state in kernel_report().states}

ATTRIBUTES = {
    "plain": AttentionAttributes(scale=0.3),
    "window": AttentionAttributes(scale=0.3, window=9),
    "soft-cap": AttentionAttributes(scale=0.9, softcap=1.5),
    "sinks": AttentionAttributes(scale=0.3, sinks_N=torch.linspace(-1.0, 2.0, 4)),
    "all": AttentionAttributes(
        scale=0.9, window=7, softcap=2.0, sinks_N=torch.linspace(-1.0, 2.0, 4)
    ),
}


@pytest.fixture(params=INSTRUCTION_SETS)
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    """Two threads of each library that can run here."""
    if PROBLEMS[request.param] is not None:
        pytest.skip(f"{request.param}: {PROBLEMS[request.param]}")
    library = load_kernel(request.param)
    library.declare(SIGNATURES)
    with Team(library, 2) as made:
        yield made


def tiled(keys_SKD: torch.Tensor, *, is_value: bool) -> torch.Tensor:
    """A cache in the layout of ``csrc/kv_cache.h``, from one in slots."""
    num_slots, num_heads, dim = keys_SKD.shape
    padded = torch.zeros(-(-num_slots // 16) * 16, num_heads, -(-dim // 16) * 16)
    padded[:num_slots, :, :dim] = keys_SKD.float()
    tiles = padded.to(keys_SKD.dtype).view(-1, 16, num_heads, padded.shape[2])
    tiles = tiles.transpose(1, 2)  # [tile][head][lane][d]
    if not is_value:
        tiles = tiles.transpose(2, 3)  # [tile][head][d][lane]
    if keys_SKD.dtype == torch.bfloat16:  # the first of the two axes in pairs, innermost
        tiles = tiles.unflatten(2, (-1, 2)).transpose(3, 4)
    return tiles.contiguous()


def attend(
    team: Team,
    case: Case,
    attributes: AttentionAttributes,
    ordering: Ordering = Ordering.FASTEST,
) -> torch.Tensor:
    """The kernel's output ``[T, N * D]``."""
    rows, cache = case.rows, case.cache
    keys, values = tiled(cache.keys_SKD, is_value=False), tiled(cache.values_SKD, is_value=True)
    lists, num_rows = rows.pages, rows.num_rows
    width = max(1, int(np.diff(lists.starts).max()))
    blocks = np.zeros((num_rows, width), np.int32)
    visible = np.zeros((num_rows, width), np.uint64)
    num_pages = np.diff(lists.starts)
    for row in range(num_rows):
        span = slice(lists.starts[row], lists.starts[row + 1])
        blocks[row, : num_pages[row]] = lists.blocks[span]
        visible[row, : num_pages[row]] = lists.visible[span]
    tables = np.where(num_pages > 0, np.arange(num_rows), -1)
    positions = np.concatenate((rows.slot_positions, np.full(16, -1, np.int32)))
    slots = np.ascontiguousarray(rows.slots, np.int64)
    starts = np.ascontiguousarray(rows.row_starts, np.int64)
    masks = (RowMask * len(rows.masks))(
        *(RowMask(row, mask.shape[1], mask.ctypes.data) for row, mask in rows.masks.items())
    )
    step = StepArguments(
        num_rows=num_rows,
        num_tokens=len(slots),
        row_starts=starts.ctypes.data,
        row_tables=tables.ctypes.data,
        positions=rows.positions.ctypes.data,
        slots=slots.ctypes.data,
        masks=ctypes.addressof(masks) if len(masks) else None,
        num_masks=len(masks),
        table_blocks=blocks.ctypes.data,
        table_visible=visible.ctypes.data,
        table_num_pages=num_pages.ctypes.data,
        table_width=width,
    )
    sinks = attributes.sinks_N
    layer = LayerAttention(
        attributes.scale,
        attributes.softcap or 0.0,
        attributes.window or 0,
        None if sinks is None else sinks.data_ptr(),
    )
    q = case.q_TND.float().contiguous()
    new_keys = cache.keys_SKD[torch.from_numpy(slots)].float().contiguous()
    new_values = cache.values_SKD[torch.from_numpy(slots)].float().contiguous()
    out_TND = torch.full(q.shape, torch.nan)
    arguments = AttentionArguments(
        step=ctypes.pointer(step),
        layer=ctypes.pointer(layer),
        slot_positions=positions.ctypes.data,
        q=q.data_ptr(),
        new_keys=new_keys.data_ptr(),
        new_values=new_values.data_ptr(),
        keys=keys.data_ptr(),
        values=values.data_ptr(),
        out=out_TND.data_ptr(),
        num_heads=q.shape[1],
        num_kv_heads=cache.keys_SKD.shape[1],
        head_dim=q.shape[2],
        page_size=rows.page_size,
        kv_type=int(cache.keys_SKD.dtype == torch.bfloat16),
        ordering=ordering,
    )
    assert team.library.native.quire_attend(team.handle, arguments) == 0
    return out_TND.flatten(1)


def assert_equal(
    team: Team, case: Case, attributes: AttentionAttributes, tolerance: float = 2e-5
) -> None:
    wanted = case.expected(attributes).float()
    difference = (attend(team, case, attributes) - wanted).abs().max()
    assert float(difference) <= tolerance


@pytest.mark.parametrize("page_size", [1, 4, 5, 8, 16, 32, 64])
def test_rows_of_all_kinds_and_any_page_size(team: Team, page_size: int) -> None:
    assert_equal(team, make_case(EVERYTHING, page_size=page_size), ATTRIBUTES["plain"])


@pytest.mark.parametrize("attributes", ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_windows_soft_caps_and_sinks(team: Team, attributes: AttentionAttributes) -> None:
    for page_size in (4, 16):
        case = make_case(EVERYTHING, page_size=page_size, seed=page_size)
        assert_equal(team, case, attributes)


@pytest.mark.parametrize(
    "heads",
    [(1, 1, 8), (6, 2, 24), (8, 1, 32), (5, 1, 40), (12, 4, 64), (7, 7, 80), (10, 2, 128)],
)
def test_any_ratio_of_heads_and_head_size(team: Team, heads: tuple[int, int, int]) -> None:
    assert_equal(team, make_case(EVERYTHING, page_size=8, heads=heads), ATTRIBUTES["plain"])


@pytest.mark.parametrize("attributes", ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_bfloat16(team: Team, attributes: AttentionAttributes) -> None:
    """The cache is bf16; on the matrix path queries and probabilities are also rounded to it."""
    for heads in ((4, 2, 32), (4, 4, 64), (4, 1, 24)):
        for page_size in (4, 16):
            case = make_case(EVERYTHING, page_size=page_size, heads=heads, dtype=torch.bfloat16)
            exact = Case(
                case.rows,
                type(case.cache)(case.cache.keys_SKD.float(), case.cache.values_SKD.float()),
                case.q_TND.float(),
                case.null_slot,
            )
            wanted = exact.expected(attributes)
            difference = (attend(team, case, attributes) - wanted).abs().max()
            assert float(difference) <= 2e-2
            single = case.tokens([1, 3, 6])  # one query each: no matrix path, exact products
            exact_single = exact.tokens([1, 3, 6])
            difference = attend(team, single, attributes) - exact_single.expected(attributes)
            assert float(difference.abs().max()) <= 2e-5


LONG = (RowShape(530, 1), RowShape(0, 300), RowShape(270, 70), RowShape(300, 40, "holes"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page_size", [1, 16])
def test_contexts_of_several_chunks(team: Team, page_size: int, dtype: torch.dtype) -> None:
    """The running maximum changes from chunk to chunk."""
    case = make_case(LONG, page_size=page_size, heads=(4, 2, 32), dtype=dtype)
    loud = AttentionAttributes(scale=1.5)
    assert_equal(team, case, loud, 2e-5 if dtype == torch.float32 else 6e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page_size", [4, 16])
def test_batch_invariance(team: Team, page_size: int, dtype: torch.dtype) -> None:
    """A token's bits depend neither on other rows nor on how a row is cut into chunks."""
    case = make_case(
        (RowShape(270, 70), RowShape(9, 1), RowShape(0, 45)),
        page_size=page_size,
        heads=(6, 2, 32),
        dtype=dtype,
    )
    plain = ATTRIBUTES["plain"]
    together = attend(team, case, plain, Ordering.BATCH_INVARIANT)
    first = 0
    for row, count in enumerate((70, 1, 45)):
        alone = attend(team, case.tokens([row]), plain, Ordering.BATCH_INVARIANT)
        assert torch.equal(alone, together[first : first + count])
        middle = count // 3
        for part in (case.tokens([row], middle), case.tokens([row], count - 1)):
            out = attend(team, part, plain, Ordering.BATCH_INVARIANT)
            assert torch.equal(out, together[first + count - len(out) : first + count])
        first += count


def test_slots_that_no_visibility_word_shows_cannot_leak(team: Team) -> None:
    """Slots of other holders in the same tiles have no effect, on either path."""
    for dtype in (torch.float32, torch.bfloat16):
        case = make_case(
            (RowShape(37, 1, "holes"), RowShape(5, 40)), page_size=4, heads=(4, 2, 32), dtype=dtype
        )
        wanted = attend(team, case, ATTRIBUTES["plain"])
        shown = np.zeros(case.cache.keys_SKD.shape[0], bool)
        pages = case.rows.pages
        for block, word in zip(pages.blocks.tolist(), pages.visible.tolist(), strict=True):
            for offset in range(4):
                shown[block * 4 + offset] |= bool(word >> offset & 1)
        shown[case.rows.slots] = True
        case.cache.keys_SKD[~torch.from_numpy(shown)] = torch.nan
        case.cache.values_SKD[~torch.from_numpy(shown)] = torch.inf
        assert torch.equal(attend(team, case, ATTRIBUTES["plain"]), wanted)


@pytest.mark.parametrize("name", ["plain", "sinks", "all"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_long_row_is_divided_among_threads_bit_for_bit(
    team: Team, dtype: torch.dtype, name: str
) -> None:
    """Two threads divide one row; in a batch of nine each thread has whole rows."""
    rows = (RowShape(1200, 1), *(RowShape(20, 1) for _ in range(8)))
    case = make_case(rows, page_size=16, heads=(4, 2, 32), dtype=dtype)
    together = attend(team, case, ATTRIBUTES[name])
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    wanted = case.expected(ATTRIBUTES[name]).float()
    assert float((together - wanted).abs().max()) <= tolerance
    alone = attend(team, case.tokens([0]), ATTRIBUTES[name])
    assert torch.equal(alone, together[:1])
