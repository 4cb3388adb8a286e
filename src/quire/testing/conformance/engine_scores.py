"""Attention scores of the rows that ask for them.

Tests state relations only. They are skipped for an engine without the trait.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from quire.core.batch import F32
from quire.core.batch_result import BatchResult
from quire.core.traits import Trait
from quire.testing.conformance.engine_driver import EngineDriver
from quire.testing.conformance.engine_rows import RowSpec, forward_rows, ints
from quire.testing.conformance.engine_suite import EngineSuite


class EngineScoresSuite(EngineSuite):
    """The results of ``ForwardRows.attention_rows``. Models with attention sinks give less mass
    than the suite expects."""

    def scoring_drivers(self) -> list[EngineDriver]:
        drivers = self.drivers()
        if any(Trait.SCORES not in driver.info.traits for driver in drivers):
            pytest.skip("the engine returns no attention scores")
        return drivers

    def test_mass_lies_on_what_is_seen_and_adds_up(self) -> None:
        for driver in self.scoring_drivers():
            tokens, pages = self.prompt(driver, 11), driver.pages_for(11)
            holder = driver.holder(range(pages))
            driver.prefill(holder, tokens[:8])
            holder.hide(3, 5)
            mass = _mass(driver, [RowSpec(holder, tokens[8:], range(8, 11), range(8, 11))])[0]
            num_slots = pages * driver.page_size
            assert mass.shape == (driver.info.num_layers, num_slots + 3)
            seen = [0, 1, 2, 5, 6, 7, *range(num_slots, num_slots + 3)]
            assert (mass[:, seen] > 0).all()
            assert not np.delete(mass, seen, axis=1).any()
            np.testing.assert_allclose(mass.sum(axis=1), 3.0, rtol=1e-4)

    def test_rows_are_told_apart(self) -> None:
        for driver in self.scoring_drivers():
            rows = [
                RowSpec(None, self.prompt(driver, 2 + i, seed=i), range(2 + i)) for i in range(3)
            ]
            alone = [_mass(driver, [row])[0] for row in rows]
            for together, expected in zip(_mass(driver, rows), alone, strict=True):
                np.testing.assert_allclose(together, expected, atol=1e-5)

    def test_chunks_add_up(self) -> None:
        """The first slots get the same mass from a prompt in chunks as from the whole prompt."""
        for driver in self.scoring_drivers():
            tokens, pages = self.prompt(driver, 9), driver.pages_for(9)
            whole = _mass(driver, [RowSpec(None, tokens, range(9))])[0]
            holder = driver.holder(range(pages))
            given = np.zeros((driver.info.num_layers, 4))
            for start, stop in ((0, 4), (4, 9)):
                span = range(start, stop)
                mass = _mass(driver, [RowSpec(holder, tokens[start:stop], span, span)])[0]
                given += mass[:, -4:] if start == 0 else mass[:, :4]
                holder.show(start, stop)
            np.testing.assert_allclose(given, whole[:, :4], atol=1e-4)


def _mass(driver: EngineDriver, rows: list[RowSpec]) -> list[F32]:
    """The mass of each row, all sent in one message."""
    forward = forward_rows(rows)
    forward.attention_rows = ints(range(len(rows)))
    tables = [row.holder.write() for row in rows if row.holder is not None]
    result: BatchResult = driver.execute(operations=tables, forward=forward)
    assert not result.failures, result.failures
    starts = result.attention_starts.tolist()
    return [result.attention_mass[:, start:stop] for start, stop in pairwise(starts)]
