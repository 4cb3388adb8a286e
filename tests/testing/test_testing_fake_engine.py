"""The fake engine against the reference decoder, and the messages that it refuses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from quire.core.batch import (
    AdvanceRows,
    Batch,
    CloseSequences,
    CopySlots,
    DistRows,
    DropTables,
    ExtendSequence,
    OpenSequence,
    SampleRows,
    SwapOut,
    WriteTable,
)
from quire.core.batch_result import SequenceEnd
from quire.core.decoding import GrammarSpec, Processor, SamplerSpec, StopSpec
from quire.core.errors import EngineFault, InvalidArgument
from quire.core.ids import SequenceId, TableId
from quire.core.interfaces import EngineCore
from quire.testing import (
    FakeEngine,
    FakeTokenizer,
    ProtocolViolation,
    ReferenceContext,
    StepTime,
    expected_dist,
    expected_tokens,
    fake_pool,
)
from quire.testing.conformance.engine_driver import EngineDriver
from quire.testing.conformance.engine_rows import RowSpec, forward_rows, ints

PROMPT = list(b"a small prompt")
HOT = Processor("temperature", {"temperature": 3.0})


def driver(page_size: int = 4, **pool: int) -> EngineDriver:
    return EngineDriver(FakeEngine(fake_pool(page_size=page_size, **pool)))


class TestAgainstTheReference:
    @pytest.mark.parametrize("page_size", [1, 2, 16])
    @pytest.mark.parametrize(
        ("sampler", "stop", "grammar"),
        [
            (SamplerSpec(), StopSpec(max_tokens=20), None),
            (SamplerSpec((HOT,), greedy=False, seed=7), StopSpec(max_tokens=20), None),
            (
                SamplerSpec((Processor("repetition_penalty", {"penalty": 1.5}),)),
                StopSpec(max_tokens=20, min_tokens=4, token_ids=(11, 29, 81)),
                None,
            ),
            (
                SamplerSpec((HOT,), greedy=False, seed=1),
                StopSpec(max_tokens=40, token_ids=FakeTokenizer().eos_token_ids),
                GrammarSpec("regex", "(ab|cd){4,9}"),
            ),
        ],
    )
    def test_decode(
        self, page_size: int, sampler: SamplerSpec, stop: StopSpec, grammar: GrammarSpec | None
    ) -> None:
        expected = expected_tokens(PROMPT, stop, sampler=sampler, grammar=grammar)
        decoded = driver(page_size).decode(
            range(64 // page_size), PROMPT, stop, sampler=sampler, grammar=grammar, num_steps=3
        )
        assert decoded.tokens == expected
        assert len(expected) >= 5

    def test_stop_string_and_room(self) -> None:
        free = expected_tokens(PROMPT, StopSpec(max_tokens=20))
        stop = StopSpec(max_tokens=20, strings=(bytes(free[3:5]),))
        assert expected_tokens(PROMPT, stop) == free[:5]
        assert driver().decode(range(16), PROMPT, stop).tokens == free[:5]
        limited = driver().decode(range(16), PROMPT, StopSpec(max_tokens=20), limit=16)
        assert limited.tokens == expected_tokens(PROMPT, StopSpec(max_tokens=20), max_room=16)
        assert len(limited.tokens) == 16 - len(PROMPT) + 1

    def test_rows_after_masked_context(self) -> None:
        engine = driver()
        holder = engine.holder(range(4))
        engine.prefill(holder, PROMPT, chunk=5)
        holder.hide(3, 6)
        (after,) = engine.forward([RowSpec(holder, [65, 66], (14, 15))])
        context, _ = ReferenceContext().run_tokens(PROMPT)
        seen = ReferenceContext(context.seen[:3] + context.seen[6:])
        _, hidden = seen.run_tokens([65, 66])
        dist = expected_dist(hidden[-1], engine.info.vocab_size, top_k=5)
        assert np.argsort(-after, kind="stable")[:5].tolist() == dist.token_ids
        np.testing.assert_allclose(np.exp(after[dist.token_ids]), dist.probs, rtol=1e-5)


def test_every_part_of_the_context_counts() -> None:
    """Another token, position, order or multiplicity changes the next distribution."""
    base, _ = ReferenceContext().run_tokens([1, 2, 3])
    variants = [
        ReferenceContext().run_tokens([1, 2, 4])[0],
        ReferenceContext().run_tokens([2, 1, 3])[0],
        ReferenceContext().run_tokens([1, 2, 3], position=1)[0],
        ReferenceContext(base.seen[1:]),
        ReferenceContext(base.seen + base.seen[:1]),
    ]
    hidden = {context.run_tokens([9], position=50)[1][0] for context in [base, *variants]}
    assert len(hidden) == 1 + len(variants)
    shuffled = ReferenceContext(base.seen[::-1])
    assert shuffled.run_tokens([9], position=50)[1][0] in hidden


def sequence(table: int = 1, **changes: object) -> OpenSequence:
    fields: dict[str, object] = {
        "sequence": SequenceId(0),
        "epoch": 1,
        "table": TableId(table),
        "cursor": 2,
        "limit": 8,
        "position": 2,
        "sampler": SamplerSpec(),
        "stop": StopSpec(max_tokens=9),
        "history": ints([5, 6]),
    }
    return OpenSequence(**(fields | changes))  # type: ignore[arg-type]


def table(
    table: int = 1, blocks: tuple[int, ...] = (0, 1), visible: tuple[int, ...] = (0, 0)
) -> WriteTable:
    return WriteTable(
        table=TableId(table), start=0, blocks=ints(blocks), visible=np.array(visible, np.uint64)
    )


def rows(*specs: RowSpec) -> dict[str, object]:
    return {"forward": forward_rows(specs)}


def advance(sequence: int, epoch: int = 1) -> AdvanceRows:
    return AdvanceRows(sequences=ints([sequence]), epochs=ints([epoch]), max_steps=ints([1]))


def started() -> EngineDriver:
    """An engine with sequence 0 over table 1 (blocks 0 and 1), its first token sampled."""
    engine = driver()
    holder = engine.holder([0, 1])
    engine.start(sequence(table=holder.table), holder)
    return engine


def begun(engine: EngineDriver, block: int = 40) -> EngineDriver:
    """``engine`` with transfer 0 in progress, from ``block`` to host block 0."""
    engine.execute(operations=[engine.begin_swap_out([block], [0])])
    return engine


VIOLATIONS: dict[str, Callable[[EngineDriver], object]] = {
    "does not exist": lambda e: e.execute(operations=[DropTables(tables=[TableId(9)])]),
    "out of range, the pool has 64": lambda e: e.execute(operations=[table(blocks=(0, 64))]),
    "beyond page_size": lambda e: e.execute(operations=[table(visible=(16, 0))]),
    "starts at entry": lambda e: e.execute(
        operations=[
            WriteTable(table=TableId(7), start=1, blocks=ints([1]), visible=np.zeros(1, np.uint64))
        ]
    ),
    "were never written": lambda e: e.forward([RowSpec(e.holder([40], 1), [5], [1])]),
    "a later row of the message writes": lambda e: e.forward(
        [RowSpec(e.holder([40], 1), [5], [1]), RowSpec(e.holder([40]), [5], [0], [0])]
    ),
    "of the same message writes too": lambda e: e.forward(
        [RowSpec(e.holder([40]), [5], [0], [0]), RowSpec(e.holder([40]), [5], [0], [0])]
    ),
    "that nothing was moved to": lambda e: e.execute(operations=[e.begin_swap_in([0], [0])]),
    "two swaps in one direction": lambda e: e.execute(
        operations=[e.begin_swap_out([40], [0]), e.begin_swap_out([41], [1])]
    ),
    "device blocks [40] are under way": lambda e: begun(e).swap(e.begin_swap_out([40], [1])),
    "host blocks [0] are under way": lambda e: begun(e).swap(e.begin_swap_out([41], [0])),
    "transfer 0 is under way already": lambda e: begun(e).execute(
        operations=[SwapOut(transfers=ints([0]), blocks=ints([41]), host_blocks=ints([1]))]
    ),
    "row 0: blocks [40] are under way": lambda e: begun(e).forward(
        [RowSpec(e.holder([40]), [5], [0], [0])]
    ),
    "sees: blocks [0] are under way": lambda e: begun(e, 0).forward(
        [RowSpec(e.holder([0], 1), [5], [1])]
    ),
    "sequence 0: blocks [0] are under way": lambda e: begun(e, 0).execute(advance=advance(0)),
    "CopySlots.source: blocks [0] are under way": lambda e: begun(e, 0).execute(
        operations=[CopySlots(source=ints([0]), target=ints([201]))]
    ),
    "CopySlots.source: slots": lambda e: e.execute(
        operations=[CopySlots(source=ints([200]), target=ints([201]))]
    ),
    "read but never written": lambda e: e.execute(
        dists=DistRows(embeds=ints([77]), top_k=ints([1]))
    ),
    "hold no token": lambda e: e.forward([RowSpec(None, [~5], [0])]),
    "which is not open": lambda e: e.execute(advance=advance(3)),
    "is opened while open": lambda e: e.execute(operations=[table(8), sequence(table=8)]),
    "has two sequences": lambda e: e.execute(operations=[sequence(sequence=SequenceId(1))]),
    "of at most 32": lambda e: e.execute(operations=[table(8), sequence(8, sequence=32)]),
    "is beyond the 2 entries": lambda e: e.execute(
        operations=[ExtendSequence(sequence=SequenceId(0), limit=9)]
    ),
    "goes back from": lambda e: e.execute(
        operations=[ExtendSequence(sequence=SequenceId(0), limit=7)]
    ),
    "dropped under its sequence": lambda e: e.execute(operations=[DropTables(tables=[TableId(1)])]),
    "is not open": lambda e: e.execute(operations=[CloseSequences(sequences=[SequenceId(5)])]),
    "the limit is 128": lambda e: e.forward([RowSpec(None, [1] * 129, range(129))]),
    "arrives where": lambda e: e.engine.execute(Batch(serial=40)),
    "has tokens already": lambda e: e.execute(**rows(RowSpec(None, [5], [1], sequence=0))),
    "stands twice in one message": lambda e: e.execute(
        advance=AdvanceRows(sequences=ints([0, 0]), epochs=ints([1, 1]), max_steps=ints([1, 1]))
    ),
    "over a visible slot": lambda e: e.execute(
        operations=[table(visible=(15, 15))], advance=advance(0)
    ),
    "has no first token yet": lambda e: e.execute(
        operations=[table(8, (2, 3)), sequence(8, sequence=SequenceId(1))], advance=advance(1)
    ),
    "uses embeds [0] that an earlier row": lambda e: e.send_rows(
        [RowSpec(None, [5], [0]), RowSpec(None, [], [0], embeds=[0])]
    ),
    "its mask has 3 columns": lambda e: e.forward(
        [RowSpec(e.holder([40]), [5], [0], mask=np.ones((1, 3), bool))]
    ),
}


@pytest.mark.parametrize("text", VIOLATIONS)
def test_misuse_is_refused(text: str) -> None:
    engine = started()
    with pytest.raises(ProtocolViolation) as caught:
        VIOLATIONS[text](engine)
    assert text in str(caught.value)
    with pytest.raises(ProtocolViolation):
        engine.execute()


def test_two_sequences_may_not_append_to_one_block() -> None:
    engine = started()
    other = engine.holder([0, 1])
    engine.start(sequence(other.table, sequence=SequenceId(1), limit=8), other)
    both = AdvanceRows(sequences=ints([0, 1]), epochs=ints([1, 1]), max_steps=ints([1, 1]))
    with pytest.raises(ProtocolViolation, match=r"blocks \[0\] are appended to by two"):
        engine.execute(advance=both)


class TestFailures:
    def test_a_row_fails_and_its_sequence_with_it(self) -> None:
        core = FakeEngine()
        engine = EngineDriver(core)
        core.fail_row(0, "forward", 0, InvalidArgument("injected"))
        holder = engine.holder([0, 1])
        opened = sequence(table=holder.table)
        row = RowSpec(holder, [5, 6], (0, 1), (0, 1), sequence=0)
        result = engine.execute(operations=[holder.write(), opened], **rows(row))
        assert [(f.stage, f.index) for f in result.failures] == [("forward", 0)]
        assert result.sequences is not None
        assert result.sequences.ends.tolist() == [SequenceEnd.FAILED]
        assert not result.sequences.tokens.size

    def test_a_bad_grammar_fails_its_sequence(self) -> None:
        engine = driver()
        holder = engine.holder([0, 1])
        opened = sequence(table=holder.table, grammar=GrammarSpec("regex", "("))
        row = RowSpec(holder, [5, 6], (0, 1), (0, 1), sequence=0)
        result = engine.execute(operations=[holder.write(), opened], **rows(row))
        assert result.failures[0].stage == "operations"
        assert result.failures[0].error.code == "invalid_grammar"
        assert result.sequences is not None
        assert result.sequences.ends.tolist() == [SequenceEnd.FAILED]

    def test_an_impossible_sampler_fails_alone(self) -> None:
        engine = driver()
        engine.forward([RowSpec(None, [5], [0])])
        samplers = [
            SamplerSpec((Processor("no_such", {}),)),
            SamplerSpec(greedy=False),
            SamplerSpec((Processor("temperature", {"temperature": 0}),)),
            SamplerSpec(),
        ]
        samples = SampleRows(
            embeds=ints([0] * 4),
            sampler_index=ints(range(4)),
            samplers=samplers,
            positions=ints([1] * 4),
            token_slots=ints([-1] * 4),
        )
        result = engine.execute(samples=samples)
        assert [(f.stage, f.index) for f in result.failures] == [("samples", i) for i in range(3)]
        assert result.samples[:3].tolist() == [-1] * 3
        assert result.samples[3] >= 0

    def test_crash(self) -> None:
        core = FakeEngine()
        core.crash_at(1)
        core.execute(Batch(serial=0))
        for step in (1, 2):
            with pytest.raises(EngineFault, match="injected crash at message 1"):
                core.execute(Batch(serial=step))

    def test_closed(self) -> None:
        core = FakeEngine()
        core.close()
        core.close()
        with pytest.raises(EngineFault, match="closed"):
            core.execute(Batch(serial=0))


def test_time_is_modelled() -> None:
    engine = EngineDriver(FakeEngine(step_time=StepTime(base_s=1.0, per_token_s=0.5)))
    result = engine.send_rows([RowSpec(None, [1, 2, 3], range(3))])
    assert (result.num_tokens, result.elapsed_s) == (3, 2.5)


def test_is_an_engine_core() -> None:
    assert isinstance(FakeEngine(), EngineCore)


def test_transfers_with_a_seed_end_in_parts_and_in_any_order() -> None:
    orders = set()
    for seed in range(4):
        engine = EngineDriver(FakeEngine(transfer_seed=seed))
        begun = engine.begin_swap_out(range(8), range(8))
        engine.execute(operations=[begun])
        first = engine.engine.transfer()
        assert first is not None
        rest = engine.end_transfers()
        assert sorted([*first.transfers.tolist(), *rest]) == begun.transfers.tolist()
        orders.add((len(first.transfers), *rest))
    assert len(orders) == 4
