"""Adapters: rows and sequences of one message run with different adapters, independently.

Tests state relations only. They are skipped for an engine with fewer than two adapters.
"""

from __future__ import annotations

import pytest

from quire.core.batch import DistRows
from quire.core.decoding import StopSpec
from quire.core.traits import Trait
from quire.testing.conformance.engine_driver import EngineDriver
from quire.testing.conformance.engine_rows import (
    RowSpec,
    SequenceOutput,
    forward_rows,
    gather,
    ints,
)
from quire.testing.conformance.engine_suite import EngineSuite


class EngineAdapterSuite(EngineSuite):
    """Rows and sequences that name an adapter."""

    def adapted_drivers(self) -> list[EngineDriver]:
        drivers = self.drivers()
        if any(len(driver.info.adapters) < 2 for driver in drivers):
            pytest.skip("the engine has fewer than two adapters")
        return drivers

    def test_the_trait_is_listed_where_there_are_adapters(self) -> None:
        for driver in self.drivers():
            assert (Trait.ADAPTER in driver.info.traits) == bool(driver.info.adapters)

    def test_adapters_change_what_follows(self) -> None:
        for driver in self.adapted_drivers():
            tokens = self.prompt(driver, 6)
            rows = [RowSpec(None, tokens, range(6), adapter=adapter) for adapter in (-1, 0, 1)]
            plain, first, second = driver.forward(rows)
            self.assert_different(first, plain)
            self.assert_different(second, plain)
            self.assert_different(first, second)

    def test_rows_of_one_message_keep_their_adapters(self) -> None:
        for driver in self.adapted_drivers():
            rows = [
                RowSpec(None, self.prompt(driver, 4 + i, seed=i), range(4 + i), adapter=adapter)
                for i, adapter in enumerate((1, -1, 0, 1, -1))
            ]
            alone = [driver.forward([row])[0] for row in rows]
            for together, expected in zip(driver.forward(rows), alone, strict=True):
                self.assert_same(together, expected)

    def test_pages_keep_what_their_adapter_wrote(self) -> None:
        """A row attends to context that another adapter wrote, without recomputing it."""
        for driver in self.adapted_drivers():
            tokens, pages = self.prompt(driver, 7), driver.pages_for(8)
            afters = []
            for writer in (0, 1):
                holder = driver.holder(range(writer * pages, (writer + 1) * pages))
                driver.prefill(holder, tokens[:6], adapter=writer)
                (after,) = driver.forward([RowSpec(holder, tokens[6:], [6], adapter=0)])
                afters.append(after)
            whole = driver.holder(range(2 * pages, 3 * pages))
            self.assert_same(afters[0], driver.prefill(whole, tokens, chunk=3, adapter=0))
            self.assert_different(afters[1], afters[0])

    def test_sequences_keep_their_adapters(self) -> None:
        for driver in self.adapted_drivers():
            prompt, stop, pages = (
                self.prompt(driver, 6),
                StopSpec(max_tokens=6),
                driver.pages_for(12),
            )
            alone = [
                driver.decode(range(pages), prompt, stop, adapter=adapter) for adapter in (-1, 0, 1)
            ]
            together = [SequenceOutput() for _ in alone]
            for index, adapter in enumerate((-1, 0, 1)):
                holder = driver.holder(range(index * pages, (index + 1) * pages))
                opened = driver.open(index, holder, prompt, stop, adapter=adapter)
                gather(together[index], driver.start(opened, holder), 0)
            report = driver.advance([2, 0, 1], num_steps=6)
            for row, sequence in enumerate((2, 0, 1)):
                gather(together[sequence], report, row)
            assert together == alone

    def test_a_shorter_sequence_leaves_the_others_theirs(self) -> None:
        """A sequence that ends inside a message of several steps does not disturb the others."""
        for driver in self.adapted_drivers():
            prompt, pages = self.prompt(driver, 6), driver.pages_for(16)
            stops = [StopSpec(max_tokens=count) for count in (3, 8, 5)]
            alone = [
                driver.decode(range(pages), prompt, stop, adapter=index - 1)
                for index, stop in enumerate(stops)
            ]
            together = [SequenceOutput() for _ in alone]
            for index, stop in enumerate(stops):
                holder = driver.holder(range(index * pages, (index + 1) * pages))
                opened = driver.open(index, holder, prompt, stop, adapter=index - 1)
                gather(together[index], driver.start(opened, holder), 0)
            report = driver.advance([0, 1, 2], num_steps=8)
            for row in range(3):
                gather(together[row], report, row)
            assert together == alone

    def test_an_unknown_adapter_fails_its_row_alone(self) -> None:
        for driver in self.drivers():
            tokens, missing = self.prompt(driver, 5), len(driver.info.adapters)
            (expected,) = driver.forward([RowSpec(None, tokens, range(5))])
            bad = RowSpec(None, tokens, range(5), adapter=missing)
            forward = forward_rows([bad, RowSpec(None, tokens, range(5))])
            forward.outputs[-1] = 0
            dists = DistRows(embeds=ints([0]), top_k=ints([driver.info.vocab_size]))
            result = driver.execute(forward=forward, dists=dists)
            assert [(one.stage, one.index) for one in result.failures] == [("forward", 0)]
            self.assert_same(driver.full_dist(result, 0), expected)

    def test_a_sequence_with_an_unknown_adapter_fails(self) -> None:
        for driver in self.drivers():
            holder = driver.holder(range(driver.pages_for(8)))
            prompt, missing = self.prompt(driver, 5), len(driver.info.adapters)
            opened = driver.open(0, holder, prompt, StopSpec(max_tokens=2), adapter=missing)
            result = driver.execute(operations=[holder.write(), opened])
            assert [(one.stage, one.index) for one in result.failures] == [("operations", 1)]
