"""Memory operations: sharing, truncation, copies, swaps, table edits."""

from __future__ import annotations

import pytest

from quire.core.batch import BatchOperation, CopySlots, DropTables
from quire.testing.conformance.engine_rows import RowSpec, ints
from quire.testing.conformance.engine_suite import EngineSuite


class EngineMemorySuite(EngineSuite):
    """Stage 1 of the batch message."""

    def test_forks_share_pages(self) -> None:
        """Two holders of one prefix continue in their own blocks, as if each were alone."""
        for driver in self.drivers():
            size = driver.page_size
            prefix = self.prompt(driver, 2 * size)
            shared = driver.holder([0, 1])
            driver.prefill(shared, prefix)
            span = range(2 * size, 2 * size + 1)
            rows, expected = [], []
            for index, token in enumerate((5, 6)):
                fork = driver.holder([0, 1, 2 + index], num_written=2 * size)
                rows.append(RowSpec(fork, [token], span, span))
                alone = driver.holder([4, 5, 6])
                expected.append(driver.prefill(alone, [*prefix, token]))
            for fork_after, alone_after in zip(driver.forward(rows), expected, strict=True):
                self.assert_same(fork_after, alone_after)
            self.assert_different(*expected)

    def test_truncate_and_overwrite(self) -> None:
        """Slots that were truncated and written again hold only the new tokens."""
        for driver in self.drivers():
            tokens, pages = self.prompt(driver, 12), driver.pages_for(12)
            holder = driver.holder(range(pages))
            driver.prefill(holder, tokens)
            holder.hide(5, 12)
            other = self.prompt(driver, 6, seed=9)
            again = driver.prefill(holder, other, start=5)
            fresh = driver.holder(range(pages, 2 * pages))
            self.assert_same(again, driver.prefill(fresh, tokens[:5] + other))

    def test_copies_are_independent(self) -> None:
        for driver in self.drivers():
            tokens, pages = self.prompt(driver, 8), driver.pages_for(9)
            source, target = driver.holder(range(pages)), driver.holder(range(pages, 2 * pages))
            driver.prefill(source, tokens)
            (expected,) = driver.forward([RowSpec(source, [5], [8])])
            copy = CopySlots(source=ints(source.flat(range(8))), target=ints(target.flat(range(8))))
            target.show(0, 8)
            overwritten = self.prompt(driver, 8, seed=4)
            source.hide(0, 8)
            (after,) = driver.forward([RowSpec(target, [5], [8])], [copy])
            driver.prefill(source, overwritten)
            (later,) = driver.forward([RowSpec(target, [5], [8])])
            self.assert_same(after, expected)
            self.assert_same(later, expected)

    def test_copy_within_a_page_moves_positions_along(self) -> None:
        for driver in self.drivers():
            tokens, pages = self.prompt(driver, 4), driver.pages_for(10)
            holder = driver.holder(range(pages))
            driver.prefill(holder, tokens)
            (expected,) = driver.forward([RowSpec(holder, [5], [4])])
            move = CopySlots(
                source=ints(holder.flat(range(2, 4))), target=ints(holder.flat(range(6, 8)))
            )
            holder.hide(2, 4)
            holder.show(6, 8)
            (moved,) = driver.forward([RowSpec(holder, [5], [4])], [move])
            self.assert_same(moved, expected)

    def test_swap_out_and_in_elsewhere(self) -> None:
        for driver in self.drivers():
            tokens, pages = self.prompt(driver, 8), driver.pages_for(9)
            blocks, hosts = list(range(pages)), list(range(pages))
            holder = driver.holder(blocks)
            driver.prefill(holder, tokens)
            (expected,) = driver.forward([RowSpec(holder, [5], [8])])
            driver.swap(driver.begin_swap_out(blocks, hosts))
            driver.prefill(driver.holder(blocks), self.prompt(driver, 8, seed=2))
            elsewhere = list(range(2 * pages, pages, -1))
            back = driver.holder(elsewhere, num_written=8)
            driver.swap(driver.begin_swap_in(hosts, elsewhere))
            (after,) = driver.forward([RowSpec(back, [5], [8])])
            self.assert_same(after, expected)

    def test_messages_go_on_while_transfers_are_under_way(self) -> None:
        """Transfers of both directions begin in one message, while rows of this and later messages
        use other blocks. Every transfer ends once, with the bytes from the time it began."""
        for driver in self.drivers():
            tokens, pages = self.prompt(driver, 8), driver.pages_for(9)
            away, staying = list(range(pages)), list(range(pages, 2 * pages))
            free = list(range(2 * pages, 3 * pages))
            holder, other = driver.holder(away), driver.holder(staying)
            driver.prefill(holder, tokens)
            (expected,) = driver.forward([RowSpec(holder, [5], [8])])
            driver.swap(driver.begin_swap_out(away, range(pages)))
            second = self.prompt(driver, 8, seed=3)
            driver.prefill(holder, second)
            (expected_second,) = driver.forward([RowSpec(holder, [5], [8])])
            leaving = driver.begin_swap_out(away, range(pages, 2 * pages))
            coming = driver.begin_swap_in(range(pages), free)
            driver.forward([RowSpec(other, tokens, range(8), range(8))], [leaving, coming])
            (after,) = driver.forward([RowSpec(other, [5], [8])])
            self.assert_same(after, expected)
            ended = driver.end_transfers()
            assert sorted(ended) == [*leaving.transfers.tolist(), *coming.transfers.tolist()]
            (back,) = driver.forward([RowSpec(driver.holder(free, num_written=8), [5], [8])])
            self.assert_same(back, expected)
            driver.swap(driver.begin_swap_in(range(pages, 2 * pages), away))
            (back,) = driver.forward([RowSpec(driver.holder(away, num_written=8), [5], [8])])
            self.assert_same(back, expected_second)

    def test_blocks_come_back_from_the_disk(self) -> None:
        """Blocks go to the disk from device and host, and come back to other blocks than their
        first ones."""
        drivers = [one for one in self.drivers() if one.info.pool.groups[0].num_disk_blocks]
        if not drivers:
            pytest.skip("this engine has no disk tier")
        for driver in drivers:
            tokens, pages = self.prompt(driver, 8), driver.pages_for(9)
            blocks, elsewhere = list(range(pages)), list(range(2 * pages, pages, -1))
            holder, back = driver.holder(blocks), driver.holder(elsewhere, num_written=8)
            driver.prefill(holder, tokens)
            (expected,) = driver.forward([RowSpec(holder, [5], [8])])
            driver.swap(driver.begin_swap_out(blocks, blocks))
            assert driver.write_disk("device", blocks, range(pages)) == []
            assert driver.write_disk("host", blocks, range(pages, 2 * pages)) == []
            for start in (0, pages):
                driver.prefill(driver.holder(blocks), self.prompt(driver, 8, seed=2))
                driver.prefill(driver.holder(elsewhere), self.prompt(driver, 8, seed=3))
                assert driver.read_disk(range(start, start + pages), elsewhere) == []
                (after,) = driver.forward([RowSpec(back, [5], [8])])
                self.assert_same(after, expected)

    def test_nothing_is_under_way_where_nothing_was_begun(self) -> None:
        for driver in self.drivers():
            driver.prefill(driver.holder([0]), self.prompt(driver, 1))
            assert driver.engine.transfer() is None

    def test_operations_run_in_list_order(self) -> None:
        """In one message a block may be copied elsewhere and then overwritten by the next copy."""
        for driver in self.drivers():
            size = driver.page_size
            first, second = self.prompt(driver, size), self.prompt(driver, size, seed=3)
            a, b = driver.holder([0]), driver.holder([1])
            driver.prefill(a, first)
            driver.prefill(b, second)
            (after_first,) = driver.forward([RowSpec(a, [5], [size])])
            (after_second,) = driver.forward([RowSpec(b, [5], [size])])
            spare = driver.holder([2])
            exchange: list[BatchOperation] = [
                CopySlots(source=ints(x.flat(range(size))), target=ints(y.flat(range(size))))
                for x, y in ((a, spare), (b, a), (spare, b))
            ]
            rows = [RowSpec(a, [5], [size]), RowSpec(b, [5], [size])]
            in_a, in_b = driver.forward(rows, exchange)
            self.assert_same(in_a, after_second)
            self.assert_same(in_b, after_first)

    def test_table_edits_cut_what_is_behind(self) -> None:
        for driver in self.drivers():
            size = driver.page_size
            tokens = self.prompt(driver, 3 * size)
            holder = driver.holder([0, 1, 2])
            driver.prefill(holder, tokens)
            short = driver.holder([0, 1], num_written=2 * size)
            (expected,) = driver.forward([RowSpec(short, [5], [3 * size])])
            edit = holder.write()
            edit.start, edit.blocks, edit.visible = 1, edit.blocks[1:2], edit.visible[1:2]
            driver.execute(operations=[edit])
            holder.blocks, holder.visible = holder.blocks[:2], holder.visible[:2]
            (after,) = driver.forward([RowSpec(holder, [5], [3 * size])])
            self.assert_same(after, expected)
            driver.execute(operations=[DropTables(tables=[holder.table])])
            fresh = driver.holder([2, 1], num_written=0)
            fresh.table = holder.table
            (alone,) = driver.forward([RowSpec(None, [5], [0])])
            (reused,) = driver.forward([RowSpec(fresh, [5], [0])])
            self.assert_same(reused, alone)
