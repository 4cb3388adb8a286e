"""The light engine answers like an engine within its limits, and reports requests outside of
them."""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.core.batch import (
    AdvanceRows,
    Batch,
    BatchOperation,
    DistRows,
    ForwardRows,
    OpenSequence,
    ReadDisk,
    SampleRows,
    SwapOut,
    WriteDisk,
)
from quire.core.batch_result import SequenceEnd
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.ids import SequenceId, TableId
from quire.core.interfaces import EngineCore
from quire.simulation import LightEngine, StepCost, light_pool


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_it_is_an_engine() -> None:
    assert isinstance(LightEngine(light_pool(num_blocks=4)), EngineCore)


def test_tokens_stay_the_same_in_another_batch_and_after_a_preemption(make_world: Any) -> None:
    """Three blocks for two decodes of two blocks each, so that one has to wait or to yield."""
    alone = make_world()
    alone.simulation.at(0.0, alone.launch(1, range(8), 20))
    alone.simulation.run()
    crowded = make_world(num_blocks=3)
    for program in (2, 1):
        crowded.simulation.at(0.0, crowded.launch(program, range(program, program + 8), 20))
    crowded.simulation.run()
    assert crowded.tokens[1] == alone.tokens[1]
    assert len(crowded.tokens[2]) == 20
    assert crowded.tokens[1] != crowded.tokens[2]


def test_samples_and_distributions_have_the_shape_that_was_asked_for() -> None:
    engine = LightEngine(light_pool(num_blocks=4), vocab_size=100)
    result = engine.execute(
        Batch(
            serial=1,
            dists=DistRows(embeds=i32(0, 1), top_k=i32(3, 2)),
            samples=SampleRows(
                embeds=i32(0, 1),
                sampler_index=i32(0, 0),
                samplers=[SamplerSpec(seed=5)],
                positions=i32(1, 2),
                token_slots=i32(-1, -1),
            ),
        )
    )
    assert result.dist_starts.tolist() == [0, 3, 5]
    assert result.dist_ids.tolist() == [0, 1, 2, 0, 1]
    assert np.isclose(result.dist_probs[:3].sum(), 1.0)
    first, second = result.samples.tolist()
    assert first != second
    assert all(0 <= token < 100 for token in (first, second))


def test_scores_are_refused_row_by_row() -> None:
    engine = LightEngine(light_pool(num_blocks=4))
    rows = ForwardRows(
        row_starts=i32(0, 1, 2, 3),
        tables=i32(-1, -1, -1),
        sequences=i32(-1, -1, -1),
        tokens=i32(1, 2, 3),
        embeds=i32(-1, -1, -1),
        positions=i32(0, 0, 0)[None, :],
        slots=i32(-1, -1, -1)[None, :],
        outputs=i32(-1, -1, -1),
        score_targets=i32(-1, 4, -1),
        attention_rows=i32(2),
    )
    result = engine.execute(Batch(serial=1, forward=rows))
    assert [failure.index for failure in result.failures] == [1, 2]
    assert all("no log probabilities" in failure.error.message for failure in result.failures)


def test_rows_are_told_alike_whether_they_are_even_or_not() -> None:
    """Two sequences go on with the same arrays until one of them ends."""
    engine = LightEngine(light_pool(num_blocks=4), vocab_size=100)
    operations: list[BatchOperation] = [
        opened(sequence, sequence + 10, max_tokens=sequence + 1) for sequence in (1, 2)
    ]
    rows = AdvanceRows(sequences=i32(1, 2), epochs=i32(11, 12), max_steps=i32(1, 1))
    told = []
    for step in range(4):
        result = engine.execute(
            Batch(serial=step, operations=operations if not step else [], advance=rows)
        )
        assert result.sequences is not None
        assert result.sequences.sequences.tolist() == [1, 2]
        assert result.sequences.epochs.tolist() == [11, 12]
        assert result.sequences.matched.tolist() == [-1, -1]
        starts, ends = result.sequences.token_starts.tolist(), result.sequences.ends.tolist()
        assert len(result.sequences.tokens) == starts[-1]
        told.append((starts, ends))
    over = int(SequenceEnd.MAX_TOKENS)
    assert told == [
        ([0, 1, 2], [0, 0]),
        ([0, 1, 2], [over, 0]),
        ([0, 0, 1], [0, over]),
        ([0, 0, 0], [0, 0]),
    ]
    fewer = AdvanceRows(sequences=rows.sequences, epochs=i32(11, 99), max_steps=rows.max_steps)
    engine.execute(Batch(serial=4, operations=[opened(2, 99, max_tokens=9)]))
    after = engine.execute(Batch(serial=5, advance=fewer)).sequences
    assert after is not None
    assert after.epochs.tolist() == [11, 99]
    assert after.token_starts.tolist() == [0, 0, 1]


def opened(sequence: int, epoch: int, max_tokens: int) -> OpenSequence:
    return OpenSequence(
        sequence=SequenceId(sequence),
        epoch=epoch,
        table=TableId(sequence),
        cursor=0,
        limit=32,
        position=0,
        sampler=SamplerSpec(seed=sequence),
        stop=StopSpec(max_tokens),
    )


def test_moves_take_time_and_end() -> None:
    engine = LightEngine(light_pool(num_blocks=4), StepCost(message_s=0.0, moved_block_s=0.5))
    swap = SwapOut(transfers=i32(7, 8), blocks=i32(0, 1), host_blocks=i32(0, 1))
    assert engine.execute(Batch(serial=1, operations=[swap])).elapsed_s == 1.0
    ended = engine.transfer()
    assert ended is not None
    assert ended.transfers.tolist() == [7, 8]
    assert engine.transfer() is None


def test_the_disk_has_a_time_of_its_own_and_ends_one_direction_at_a_time() -> None:
    pool = light_pool(num_blocks=4, num_disk_blocks=2)
    engine = LightEngine(pool, StepCost(message_s=0.0, moved_block_s=0.5, disk_block_s=2.0))
    swap = SwapOut(transfers=i32(7), blocks=i32(0), host_blocks=i32(0))
    write = WriteDisk(transfers=i32(8, 9), tier="host", blocks=i32(1, 2), disk_blocks=i32(0, 1))
    read = ReadDisk(transfers=i32(10), disk_blocks=i32(1), blocks=i32(3))
    assert engine.execute(Batch(serial=1, operations=[swap, write, read])).elapsed_s == 6.5
    ended = [engine.transfer() for _ in range(3)]
    told = [(one.transfers.tolist(), one.elapsed_s) for one in ended if one is not None]
    assert told == [([7], 0.5), ([8, 9], 4.0), ([10], 2.0)]
    assert engine.transfer() is None
