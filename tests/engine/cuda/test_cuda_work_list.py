"""Entries and work lists, interpreted like the kernel does, show every token what it may see."""

from __future__ import annotations

import numpy as np
import pytest
from attention_cases import EVERYTHING, Case, RowShape, make_case

from quire.engine.attention.visible_slots import visible_slots
from quire.engine.cuda.page_entries import PageEntries, page_entries
from quire.engine.cuda.work_list import Tiling, WorkList, entry_positions, work_list

Seen = dict[int, list[int]]


def emulated(case: Case, entries: PageEntries, work: WorkList, window: int | None) -> Seen:
    """The slots that each token's items show it, in reading order."""
    rows, seen = case.rows, {}
    for first_entry, first, count, begin, end, _, mask_start, stride in work.items.tolist():
        for local in range(count):
            token = first + local
            position, own = int(rows.positions[token]), int(rows.slots[token])
            for column in range(begin, end):
                entry, offset = divmod(column, rows.page_size)
                slot = int(entries.blocks[first_entry + entry]) * rows.page_size + offset
                if not int(entries.words[first_entry + entry]) >> offset & 1:
                    continue
                at = int(rows.slot_positions[slot])
                shown = at < position or slot == own
                if mask_start >= 0:
                    word = int(entries.mask_words[mask_start + local * stride + entry])
                    shown = bool(word >> offset & 1)
                if window is not None:
                    shown = shown and at > position - window
                if shown:
                    seen.setdefault(token, []).append(slot)
    return seen


def defined(case: Case, window: int | None) -> Seen:
    """The same by the rule of ``AttentionRows``, token by token."""
    rows, seen = case.rows, {}
    context = visible_slots(rows)
    for row in range(rows.num_rows):
        span = slice(*context.starts[row : row + 2])
        tokens = np.arange(*rows.row_starts[row : row + 2])
        slots = np.concatenate((context.slots[span], rows.slots[tokens]))
        positions = rows.slot_positions[slots]
        for place, token in enumerate(tokens.tolist()):
            shown = positions < rows.positions[token]
            shown[len(slots) - len(tokens) + place] = True
            if row in rows.masks:
                mask = rows.masks[row]
                new = np.arange(mask.shape[1] - len(tokens), mask.shape[1])
                shown = mask[place, np.concatenate((context.columns[span], new))]
            if window is not None:
                shown = shown & (positions > rows.positions[token] - window)
            if shown.any():
                seen[token] = slots[shown].tolist()
    return seen


def in_any_order(seen: Seen) -> dict[int, list[int]]:
    return {token: sorted(slots) for token, slots in seen.items()}


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("page_size", [1, 5, 16, 64])
@pytest.mark.parametrize("tiling", [Tiling(3, 8, None), Tiling(1, 8, 16), Tiling(40, 64, 64)])
def test_tokens_see_what_they_may(page_size: int, window: int | None, tiling: Tiling) -> None:
    case = make_case(EVERYTHING, page_size=page_size, seed=page_size)
    entries = page_entries(case.rows)
    members = np.arange(case.rows.num_rows)
    for positions in (
        None,
        entry_positions(case.rows, entries, members),
        entry_positions(case.rows, entries, members[::2]),
    ):
        work = work_list(case.rows, entries, members, tiling, window=window, positions=positions)
        seen = emulated(case, entries, work, window)
        assert in_any_order(seen) == in_any_order(defined(case, window))


def test_a_slot_in_two_entries_of_a_row_is_seen_once() -> None:
    case = make_case((RowShape(6, 3), RowShape(5, 1)), page_size=4)
    blocks = case.rows.pages.blocks
    blocks[1] = blocks[2]  # the block that the row writes is in its table twice
    case.rows.pages.visible[1:3] |= np.uint64(1)  # and its slot is visible in both entries
    entries = page_entries(case.rows)
    work = work_list(case.rows, entries, np.arange(2), Tiling(4, 4, None))
    for slots in emulated(case, entries, work, None).values():
        assert len(slots) == len(set(slots))


def test_work_out_of_the_window_is_left_out() -> None:
    case = make_case((RowShape(400, 1),), page_size=16)
    entries = page_entries(case.rows)
    positions = entry_positions(case.rows, entries, np.arange(1))
    work = work_list(
        case.rows, entries, np.arange(1), Tiling(1, 64, None), window=20, positions=positions
    )
    [item] = work.items.tolist()
    assert item[3] == 320  # a multiple of the column block, not above 400 - 20
    assert item[4] == 416


def test_later_tokens_are_left_out_of_a_prompt_tile() -> None:
    case = make_case((RowShape(0, 64),), page_size=16)
    entries = page_entries(case.rows)
    positions = entry_positions(case.rows, entries, np.arange(1))
    work = work_list(case.rows, entries, np.arange(1), Tiling(16, 16, None), positions=positions)
    assert work.items[:, 4].tolist() == [16, 32, 48, 64]


def test_parts_of_a_split_row_are_merged_in_order() -> None:
    case = make_case((RowShape(100, 1), RowShape(3, 1), RowShape(70, 1)), page_size=16)
    work = work_list(case.rows, page_entries(case.rows), np.arange(3), Tiling(1, 16, 32))
    assert work.num_partials == 4 + 3
    assert work.merges.tolist() == [[0, 1, 0, 4], [2, 1, 4, 3]]
    assert work.items[:, 5].tolist() == [0, 1, 2, 3, -1, 4, 5, 6]
    assert work.items[:4, 3:5].tolist() == [[0, 32], [32, 64], [64, 96], [96, 112]]


def test_entries_without_a_set_bit_are_left_out_at_the_end() -> None:
    case = make_case((RowShape(20, 30),), page_size=16)
    first = case.tokens([0], 0, 5)
    assert page_entries(first.rows).counts.tolist() == [2]
