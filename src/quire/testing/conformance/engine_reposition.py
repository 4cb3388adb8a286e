"""Slots that move to other positions: what a turn changes and what it does not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quire.core.batch import CopySlots, RepositionSlots
from quire.core.traits import Trait
from quire.testing.conformance.engine_driver import EngineDriver
from quire.testing.conformance.engine_rows import Holder, RowSpec, ints
from quire.testing.conformance.engine_suite import EngineSuite


def moved(holder: Holder, slots: Sequence[int], start: int) -> RepositionSlots:
    """The operation that moves ``slots`` of ``holder`` to positions from ``start`` on."""
    positions = range(start, start + len(slots))
    return RepositionSlots(slots=ints(holder.flat(slots)), positions=ints(positions))


class EngineRepositionSuite(EngineSuite):
    """``RepositionSlots``. Whether a turned context equals the one computed there can be tested for
    real models only; the engine's tests compare it with transformers."""

    def turning_drivers(self) -> list[EngineDriver]:
        drivers = self.drivers()
        if any(Trait.REPOSITION not in driver.info.traits for driver in drivers):
            pytest.skip("the engine takes nothing to other positions")
        return drivers

    def test_there_and_back_is_as_it_was(self) -> None:
        for driver in self.turning_drivers():
            tokens, pages = self.prompt(driver, 8), driver.pages_for(9)
            holder = driver.holder(range(pages))
            driver.prefill(holder, tokens)
            (expected,) = driver.forward([RowSpec(holder, [5], [8])])
            (partly,) = driver.forward([RowSpec(holder, [5], [8])], [moved(holder, [6, 7], 20)])
            self.assert_different(partly, expected)
            (after,) = driver.forward([RowSpec(holder, [5], [8])], [moved(holder, [6, 7], 6)])
            self.assert_same(after, expected)

    def test_the_way_does_not_matter(self) -> None:
        for driver in self.turning_drivers():
            tokens, pages = self.prompt(driver, 8), driver.pages_for(9)
            holder, other = driver.holder(range(pages)), driver.holder(range(pages, 2 * pages))
            for each in (holder, other):
                driver.prefill(each, tokens)
            (unmoved,) = driver.forward([RowSpec(holder, [5], [40])])
            steps = [moved(holder, range(4, 8), start) for start in (9, 30, 15)]
            (expected,) = driver.forward([RowSpec(holder, [5], [40])], steps)
            (after,) = driver.forward([RowSpec(other, [5], [40])], [moved(other, range(4, 8), 15)])
            self.assert_same(after, expected)
            self.assert_different(after, unmoved)

    def test_a_turned_copy_leaves_what_it_was_made_of(self) -> None:
        for driver in self.turning_drivers():
            tokens, pages = self.prompt(driver, 8), driver.pages_for(9)
            source, target = driver.holder(range(pages)), driver.holder(range(pages, 2 * pages))
            driver.prefill(source, tokens)
            rows = [RowSpec(source, [5], [8]), RowSpec(source, [5], [40])]
            expected, unmoved = driver.forward(rows)
            copy = CopySlots(source=ints(source.flat(range(8))), target=ints(target.flat(range(8))))
            target.show(0, 8)
            rows = [RowSpec(source, [5], [8]), RowSpec(target, [5], [40])]
            before, elsewhere = driver.forward(rows, [copy, moved(target, range(8), 25)])
            self.assert_same(before, expected)
            self.assert_different(elsewhere, unmoved)
            (turned,) = driver.forward([RowSpec(source, [5], [40])], [moved(source, range(8), 25)])
            self.assert_same(turned, elsewhere)

    def test_what_is_seen_goes_by_the_new_positions(self) -> None:
        for driver in self.turning_drivers():
            tokens, pages = self.prompt(driver, 8), driver.pages_for(9)
            holder = driver.holder(range(pages))
            driver.prefill(holder, tokens)
            holder.hide(4, 8)
            (expected,) = driver.forward([RowSpec(holder, [5], [9])])
            holder.show(4, 8)
            (before,) = driver.forward([RowSpec(holder, [5], [9])])
            self.assert_different(before, expected)
            away = moved(holder, range(4, 8), 9)
            (after,) = driver.forward([RowSpec(holder, [5], [9])], [away])
            self.assert_same(after, expected)
