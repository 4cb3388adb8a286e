"""The engine suite notices faulty engines: each kind of tampering fails the test meant for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from quire.core.batch import (
    Batch,
    CopySlots,
    EmbedRows,
    ExtendSequence,
    OpenSequence,
    RepositionSlots,
    SwapIn,
    SwapOut,
    WriteTable,
)
from quire.core.batch_result import BatchResult
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.engine_info import PoolSpec
from quire.core.errors import EngineFault
from quire.core.interfaces import EngineCore, Tokenizer
from quire.testing import FakeEngine, FakeTokenizer
from quire.testing.conformance import EngineCoreSuite

Tamper = Callable[[Batch], None]


class Suite(EngineCoreSuite):
    """Not collected: runs one test against a tampered engine."""

    __test__ = False
    tolerance = 0.0
    page_sizes = (2,)

    def __init__(self, tamper: Tamper) -> None:
        self.tamper = tamper

    def make_engine(self, pool: PoolSpec) -> EngineCore:
        return Tampered(pool, self.tamper)

    def make_tokenizer(self) -> Tokenizer:
        return FakeTokenizer()


class Tampered(FakeEngine):
    """Executes other messages than it was sent."""

    def __init__(self, pool: PoolSpec, tamper: Tamper) -> None:
        super().__init__(pool, adapters=["formal", "brief"])
        self.tamper = tamper

    def execute(self, batch: Batch) -> BatchResult:
        self.tamper(batch)
        return super().execute(batch)


def without_masks(batch: Batch) -> None:
    if batch.forward is not None:
        batch.forward.masks = []


def without(kind: type) -> Tamper:
    def tamper(batch: Batch) -> None:
        batch.operations = [op for op in batch.operations if not isinstance(op, kind)]

    return tamper


def each(kind: type, change: Callable[[object], None]) -> Tamper:
    def tamper(batch: Batch) -> None:
        for operation in batch.operations:
            if isinstance(operation, kind):
                change(operation)

    return tamper


def positions_by_list_order(batch: Batch) -> None:
    if batch.forward is not None:
        forward = batch.forward
        for start, end in zip(forward.row_starts[:-1], forward.row_starts[1:], strict=True):
            forward.positions[0, start:end] = forward.positions[0, start] + np.arange(end - start)


def only_first_step(batch: Batch) -> None:
    if batch.advance is not None:
        batch.num_steps = 1


def greedy(operation: object) -> None:
    assert isinstance(operation, OpenSequence)
    operation.sampler = SamplerSpec(operation.sampler.processors)


def first_processor_alone(operation: object) -> None:
    assert isinstance(operation, OpenSequence)
    sampler = operation.sampler
    operation.sampler = SamplerSpec(sampler.processors[:1], sampler.greedy, sampler.seed)


def forget_history(operation: object) -> None:
    assert isinstance(operation, OpenSequence)
    operation.num_generated = 0


def without_stops(operation: object) -> None:
    assert isinstance(operation, OpenSequence)
    operation.stop = StopSpec(max_tokens=operation.stop.max_tokens)


def blind_to_the_first_slot(operation: object) -> None:
    assert isinstance(operation, WriteTable)
    if len(operation.visible):
        operation.visible[0] &= ~np.uint64(1)


def embeds_of_other_tokens(batch: Batch) -> None:
    if batch.embeds is not None:
        tokens = np.where(batch.embeds.tokens >= 0, batch.embeds.tokens // 2, batch.embeds.tokens)
        batch.embeds = EmbedRows(tokens=tokens.astype(np.int32), embeds=batch.embeds.embeds)


def backwards(operation: object) -> None:
    assert isinstance(operation, SwapOut)
    operation.host_blocks = operation.host_blocks[::-1]


def without_row_adapters(batch: Batch) -> None:
    if batch.forward is not None:
        batch.forward.adapters = np.empty(0, np.int32)


def first_row_for_all(batch: Batch) -> None:
    if batch.forward is not None and len(batch.forward.adapters):
        batch.forward.adapters = np.full_like(batch.forward.adapters, batch.forward.adapters[0])


def another_adapter_for_sequence_two(operation: object) -> None:
    assert isinstance(operation, OpenSequence)
    if operation.sequence == 2:
        operation.adapter = 0


TAMPERINGS: list[tuple[str, Tamper]] = [
    ("test_explicit_mask_states_any_rule", without_masks),
    ("test_explicit_mask_separates_branches", without_masks),
    ("test_copies_are_independent", without(CopySlots)),
    ("test_copy_within_a_page_moves_positions_along", without(CopySlots)),
    ("test_there_and_back_is_as_it_was", without(RepositionSlots)),
    ("test_the_way_does_not_matter", without(RepositionSlots)),
    ("test_a_turned_copy_leaves_what_it_was_made_of", without(CopySlots)),
    ("test_a_turned_copy_leaves_what_it_was_made_of", without(RepositionSlots)),
    ("test_what_is_seen_goes_by_the_new_positions", without(RepositionSlots)),
    ("test_swap_out_and_in_elsewhere", without(SwapIn)),
    ("test_swap_out_and_in_elsewhere", each(SwapOut, backwards)),
    ("test_messages_go_on_while_transfers_are_under_way", without(SwapIn)),
    ("test_messages_go_on_while_transfers_are_under_way", each(SwapOut, backwards)),
    ("test_extending_gives_room", without(ExtendSequence)),
    ("test_explicit_mask_separates_branches", positions_by_list_order),
    ("test_same_seed_same_tokens", each(OpenSequence, greedy)),
    ("test_resumes_where_it_was_preempted", each(OpenSequence, forget_history)),
    ("test_samplers_are_rebuilt_from_history", each(OpenSequence, forget_history)),
    ("test_a_word_is_forbidden_at_its_last_token", each(OpenSequence, first_processor_alone)),
    ("test_dry_ends_a_repetition", each(OpenSequence, first_processor_alone)),
    ("test_stop_tokens_end_it_and_belong_to_it", each(OpenSequence, without_stops)),
    ("test_stop_strings_end_it_where_they_are_complete", each(OpenSequence, without_stops)),
    ("test_min_tokens_hold_stop_tokens_back", each(OpenSequence, without_stops)),
    ("test_chunked_prefill_equals_whole", each(WriteTable, blind_to_the_first_slot)),
    ("test_forks_share_pages", each(WriteTable, blind_to_the_first_slot)),
    ("test_embeds_are_inputs_like_tokens", embeds_of_other_tokens),
    ("test_extending_gives_room", only_first_step),
    ("test_adapters_change_what_follows", without_row_adapters),
    ("test_pages_keep_what_their_adapter_wrote", without_row_adapters),
    ("test_rows_of_one_message_keep_their_adapters", first_row_for_all),
    ("test_sequences_keep_their_adapters", each(OpenSequence, another_adapter_for_sequence_two)),
]


@pytest.mark.parametrize(("test", "tamper"), TAMPERINGS)
def test_tampering_is_noticed(test: str, tamper: Tamper) -> None:
    with pytest.raises((AssertionError, EngineFault)):
        getattr(Suite(tamper), test)()


@pytest.mark.parametrize("test", sorted({test for test, _ in TAMPERINGS}))
def test_an_honest_engine_passes(test: str) -> None:
    getattr(Suite(lambda batch: None), test)()
