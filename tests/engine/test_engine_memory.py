"""Page tables, operations out of range, embeds and token slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from engine_driver import GREEDY, Driver, Row, forward_rows, i32

from quire.core.batch import (
    CloseSequences,
    CopySlots,
    DistRows,
    DropTables,
    EmbedRows,
    ExtendSequence,
    Operation,
    ReadDisk,
    SampleRows,
    SwapIn,
    SwapOut,
    WriteDisk,
    WriteEntries,
    WriteTable,
)
from quire.core.config import DEFAULT_CACHE_BYTES, EngineConfig
from quire.core.decoding import SamplerSpec
from quire.core.errors import ConfigError, InvalidArgument, UnknownHandle
from quire.core.ids import ModelId, SequenceId, TableId
from quire.engine.kv_cache.page_tables import NO_TABLE, UNKNOWN_TABLE, PageTables, TablePages
from quire.engine.kv_cache.pool import BlockShape

MakeDriver = Callable[..., Driver]


def u64(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint64)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, DEFAULT_CACHE_BYTES // 256),
        ({"kv_cache_bytes": 1000}, 3),
        ({"kv_cache_bytes": 1000, "num_blocks": 7}, 7),
    ],
    ids=["the default", "bytes", "blocks"],
)
def test_the_cache_is_as_large_as_it_is_asked_to_be(asked: dict[str, Any], found: int) -> None:
    shape = BlockShape(2, 1, 4, 4, torch.float32)
    assert shape.bytes_per_block == 256
    assert shape.num_blocks(EngineConfig("model", ModelId("m"), **asked)) == found
    with pytest.raises(ConfigError, match="kv_cache_bytes is 255"):
        shape.num_blocks(EngineConfig("model", ModelId("m"), kv_cache_bytes=255))


def test_the_first_tables_need_no_new_arrays() -> None:
    tables = PageTables()
    blocks, num_pages = tables.blocks_TP, tables.num_pages_T
    for table in range(len(num_pages)):
        tables.write(table, 0, i32([table]), u64([1]))
    assert (tables.blocks_TP is blocks, tables.num_pages_T is num_pages) == (True, True)
    tables.write(len(num_pages), 0, i32([7]), u64([1]))
    assert len(tables.blocks_TP) == len(tables.num_pages_T) == 2 * len(num_pages)
    assert tables.blocks(tables.row(0)).tolist() == [0]


def test_tables_grow_cut_and_refuse_gaps() -> None:
    tables = PageTables()
    tables.write(1, 0, i32(range(20)), u64([7] * 20))
    tables.write(1, 18, i32([50, 51, 52]), u64([1, 2, 3]))
    row = tables.row(1)
    assert tables.blocks(row).tolist() == [*range(18), 50, 51, 52]
    tables.write(1, 2, i32([9]), u64([5]))
    assert tables.blocks(row).tolist() == [0, 1, 9]
    assert tables.visible(row).tolist() == [7, 7, 5]
    with pytest.raises(InvalidArgument, match="3 entries, but is written from entry 4"):
        tables.write(1, 4, i32([1]), u64([1]))
    with pytest.raises(InvalidArgument, match="0 entries"):
        tables.write(2, 1, i32([1]), u64([1]))
    assert 2 not in tables
    assert tables.find_rows(i32([1, -1, 2])).tolist() == [row, NO_TABLE, UNKNOWN_TABLE]
    tables.drop(1)
    with pytest.raises(UnknownHandle, match="not resident"):
        tables.drop(1)


def test_many_tables_keep_their_rows_and_read_as_lists() -> None:
    tables = PageTables()
    for table in range(100):
        tables.write(table, 0, i32(range(table % 7)), u64([table] * (table % 7)))
    tables.write(40, 0, i32(range(300)), u64([1] * 300))
    tables.drop(13)
    tables.write(200, 0, i32([5]), u64([6]))
    named = i32([16, 200, -1, 40, 16])
    lists = TablePages(tables, tables.find_rows(named))
    assert np.diff(lists.starts).tolist() == [2, 1, 0, 300, 2]
    assert lists.blocks.tolist() == [0, 1, 5, *range(300), 0, 1]
    assert lists.visible.tolist() == [16, 16, 6, *[1] * 300, 16, 16]
    assert len(tables) == 100


@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_revealing_sets_a_run_of_bits(page_size: int) -> None:
    num_pages = 200 // page_size
    tables = PageTables()
    tables.write(7, 0, i32([0]), u64([0]))
    tables.write(8, 0, i32(range(num_pages)), u64([0] * num_pages))
    row, slots = tables.row(8), np.array([*range(3, 71), 130])
    tables.reveal(np.full(len(slots), row), slots, page_size)
    visible = tables.visible(row)
    bits = [
        slot
        for slot in range(num_pages * page_size)
        if int(visible[slot // page_size]) >> slot % page_size & 1
    ]
    assert bits == [*range(3, 71), 130]
    assert tables.visible(tables.row(7)).tolist() == [0]


def test_entries_are_set_in_order_and_cut_off_later_ones() -> None:
    tables = PageTables()
    tables.write(1, 0, i32([10, 11, 12]), u64([1, 1, 1]))
    tables.write(2, 0, i32([20]), u64([1]))
    tables.write_entries(i32([2, 1]), i32([1, 1]), i32([21, 31]), u64([3, 7]))
    assert tables.blocks(tables.row(2)).tolist() == [20, 21]
    assert tables.visible(tables.row(2)).tolist() == [1, 3]
    assert tables.blocks(tables.row(1)).tolist() == [10, 31]
    assert tables.visible(tables.row(1)).tolist() == [1, 7]
    # a new table, the same one twice, and more entries than fit before
    again = [3, *[2] * 20]
    entries = [0, *range(2, 22)]
    tables.write_entries(i32(again), i32(entries), i32(entries), u64(entries))
    assert tables.blocks(tables.row(3)).tolist() == [0]
    assert tables.blocks(tables.row(2)).tolist() == [20, 21, *range(2, 22)]


BAD_OPERATIONS: list[tuple[Operation, str]] = [
    (WriteTable(table=TableId(9), start=0, blocks=i32([96]), visible=u64([0])), "block 96"),
    (WriteTable(table=TableId(9), start=0, blocks=i32([-1]), visible=u64([0])), "block -1"),
    (WriteTable(table=TableId(9), start=3, blocks=i32([1]), visible=u64([0])), "gap"),
    (
        WriteEntries(
            tables=i32([9, 9]), entries=i32([0, 2]), blocks=i32([1, 1]), visible=u64([0, 0])
        ),
        "gap",
    ),
    (
        WriteEntries(tables=i32([9]), entries=i32([0]), blocks=i32([96]), visible=u64([0])),
        "block 96",
    ),
    (DropTables(tables=[TableId(77)]), "77 is not resident"),
    (CopySlots(source=i32([0]), target=i32([96 * 4])), "slot 384"),
    (CopySlots(source=i32([-1]), target=i32([0])), "slot -1"),
    (SwapOut(transfers=i32([0]), blocks=i32([0]), host_blocks=i32([100_000])), "host block 100000"),
    (SwapIn(transfers=i32([0]), blocks=i32([96]), host_blocks=i32([0])), "block 96"),
    (
        WriteDisk(transfers=i32([0]), blocks=i32([96]), disk_blocks=i32([0]), tier="device"),
        "block 96..96 is outside 0..95",
    ),
    (
        WriteDisk(transfers=i32([0]), blocks=i32([100_000]), disk_blocks=i32([0]), tier="host"),
        "host block 100000",
    ),
    (ReadDisk(transfers=i32([0]), blocks=i32([0]), disk_blocks=i32([0])), "disk block 0"),
    (ExtendSequence(sequence=SequenceId(5), limit=9), "sequence 5 is not open"),
    (CloseSequences(sequences=[SequenceId(99)]), "sequence 99 is not open"),
]


@pytest.mark.parametrize(("operation", "part"), BAD_OPERATIONS)
def test_an_operation_out_of_range_fails_alone(
    operation: Operation, part: str, make_driver: MakeDriver
) -> None:
    driver = make_driver()
    result = driver.send(
        operations=[operation, driver.write_table(3, [1, 2])],
        forward=forward_rows([Row([5], 3)], outputs=False),
    )
    assert [(f.stage, f.index) for f in result.failures] == [("operations", 0)]
    assert part in result.failures[0].error.message
    assert result.num_tokens == 1


def test_a_sequence_opens_once_and_reopens_after_closing(make_driver: MakeDriver) -> None:
    driver = make_driver()
    operations, _ = driver.open(2, [5, 6], [0, 1])
    driver.good(operations=operations)
    again = driver.send(operations=operations)
    assert [f.error.code for f in again.failures] == ["invalid_argument"]
    driver.good(operations=[CloseSequences(sequences=[SequenceId(2)]), *operations])


def test_copies_read_before_they_write(make_driver: MakeDriver) -> None:
    """A shift by one within overlapping slots."""
    driver = make_driver()
    tokens = [5, 6, 7, 8]
    driver.logprobs([Row(tokens, 0, slots=range(4))], [driver.write_table(0, [0, 1], range(4))])
    wanted = driver.logprobs([Row([9], 0, [4])])
    shifted = [
        CopySlots(source=i32(range(4)), target=i32(range(1, 5))),
        driver.write_table(1, [0, 1], range(1, 5)),
    ]
    np.testing.assert_allclose(driver.logprobs([Row([9], 1, [4])], shifted), wanted, atol=1e-5)
    # positions are copied too: at position 2 only the first two tokens are seen
    np.testing.assert_allclose(
        driver.logprobs([Row([9], 1, [2])]), driver.logprobs([Row([5, 6, 9])])[2:], atol=1e-5
    )


def test_embeds_replace_tokens(make_driver: MakeDriver) -> None:
    driver = make_driver()
    wanted = driver.logprobs([Row([5, 6, 7])])
    forward = forward_rows([Row([5, 0, 7])])
    forward.embeds = i32([-1, 200, -1])
    driver.good(
        embeds=EmbedRows(tokens=i32([6]), embeds=i32([200])),
        forward=forward,
        dists=DistRows(embeds=i32([2]), top_k=i32([4])),
    )
    result = driver.good(dists=DistRows(embeds=i32([2, 1]), top_k=i32([300, 5])))
    assert result.dist_starts.tolist() == [0, 300, 305]
    best = np.argsort(-wanted[2], kind="stable")
    assert result.dist_ids[:300].tolist() == best.tolist()
    np.testing.assert_allclose(np.log(result.dist_probs[:300]), wanted[2][best], atol=1e-4)


def test_token_slots_run_ahead(make_driver: MakeDriver) -> None:
    """The next message names the sampled token before the host could have seen it."""
    driver = make_driver()
    driver.logprobs([Row([5, 6, 7])])
    sampled = driver.good(
        samples=SampleRows(
            embeds=i32([2, 1]),
            sampler_index=i32([0, 1]),
            samplers=[GREEDY, SamplerSpec(greedy=False, seed=3)],
            positions=i32([3, 2]),
            token_slots=i32([4, -1]),
        )
    ).samples
    ahead = driver.logprobs([Row([5, 6, 7, ~4])])
    np.testing.assert_allclose(ahead, driver.logprobs([Row([5, 6, 7, int(sampled[0])])]), atol=1e-6)


def test_bad_rows_of_the_small_stages_fail_alone(make_driver: MakeDriver) -> None:
    driver = make_driver()
    driver.logprobs([Row([5, 6])])
    result = driver.send(
        embeds=EmbedRows(tokens=i32([6, 300, ~9, 6]), embeds=i32([7, 8, 9, 256])),
        dists=DistRows(embeds=i32([0, -1, 1, 0]), top_k=i32([3, 3, 0, 2])),
        samples=SampleRows(
            embeds=i32([0, 999, 1, 0]),
            sampler_index=i32([0, 0, 1, 0]),
            samplers=[GREEDY, SamplerSpec(greedy=False)],
            positions=i32([0, 0, 0, 0]),
            token_slots=i32([-1, -1, -1, 32]),
        ),
    )
    assert sorted((f.stage, f.index) for f in result.failures) == [
        *(("dists", i) for i in (1, 2)),
        *(("embeds", i) for i in (1, 2, 3)),
        *(("samples", i) for i in (1, 2, 3)),
    ]
    assert result.dist_starts.tolist() == [0, 3, 3, 3, 5]
    assert (result.samples >= 0).tolist() == [True, False, False, False]
