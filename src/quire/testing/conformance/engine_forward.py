"""Rows: visibility, masks, positions, embeds, scores, failures of single rows."""

from __future__ import annotations

import numpy as np

from quire.core.batch import DistRows, EmbedRows, SampleRows
from quire.core.decoding import SamplerSpec
from quire.testing.conformance.engine_rows import RowSpec, forward_rows, ints
from quire.testing.conformance.engine_suite import EngineSuite


class EngineForwardSuite(EngineSuite):
    """Stage 3 of the batch message and the stages that read its outputs."""

    def test_chunked_prefill_equals_whole(self) -> None:
        for driver in self.drivers():
            tokens = self.prompt(driver, 21)
            pages = driver.pages_for(21)
            whole = driver.prefill(driver.holder(range(pages)), tokens)
            for chunk in (1, 4, 20):
                holder = driver.holder(range(pages, 2 * pages))
                self.assert_same(driver.prefill(holder, tokens, chunk=chunk), whole)

    def test_rows_of_one_message_do_not_touch(self) -> None:
        for driver in self.drivers():
            alone, rows = [], []
            for index, length in enumerate((9, 1, 14)):
                tokens, pages = self.prompt(driver, length, seed=index), driver.pages_for(length)
                holder = driver.holder(range(pages))
                alone.append(driver.prefill(holder, tokens))
                first = 20 * index if driver.page_size < 16 else index
                span = range(length)
                holder = driver.holder(range(first, first + pages))
                rows.append(RowSpec(holder, tokens, span, span))
            for together, expected in zip(driver.forward(rows), alone, strict=True):
                self.assert_same(together, expected)

    def test_later_row_sees_what_an_earlier_row_writes(self) -> None:
        for driver in self.drivers():
            tokens, pages = self.prompt(driver, 12), driver.pages_for(12)
            expected = driver.prefill(driver.holder(range(pages)), tokens)
            writer = driver.holder(range(pages, 2 * pages))
            reader = driver.holder(range(pages, 2 * pages), num_written=7)
            head, tail = range(7), range(7, 12)
            _, last = driver.forward(
                [RowSpec(writer, tokens[:7], head, head), RowSpec(reader, tokens[7:], tail, tail)]
            )
            self.assert_same(last, expected)

    def test_page_order_and_gaps_are_free(self) -> None:
        """Causality follows positions: pages may be in any order and have empty slots."""
        for driver in self.drivers():
            tokens = self.prompt(driver, 2 * driver.page_size + 1)
            pages = driver.pages_for(len(tokens))
            expected = driver.prefill(driver.holder(range(pages)), tokens)
            backwards = driver.holder(range(2 * pages - 1, pages - 1, -1))
            size, last = driver.page_size, len(tokens) - 1
            slots = [(pages - 1 - i // size) * size + i % size for i in range(last)]
            driver.forward([RowSpec(backwards, tokens[:last], range(last), slots)])
            (after,) = driver.forward([RowSpec(backwards, tokens[last:], [last])])
            self.assert_same(after, expected)
            gapped = driver.holder(range(2 * pages, 2 * pages + 2 * pages))
            slots = [2 * i for i in range(last)]
            driver.forward([RowSpec(gapped, tokens[:last], range(last), slots)])
            (after,) = driver.forward([RowSpec(gapped, tokens[last:], [last])])
            self.assert_same(after, expected)

    def test_higher_positions_are_not_seen(self) -> None:
        for driver in self.drivers():
            tokens, pages = self.prompt(driver, 12), driver.pages_for(12)
            holder = driver.holder(range(pages))
            driver.prefill(holder, tokens)
            (among_later,) = driver.forward([RowSpec(holder, [3], [6])])
            prefix = driver.holder(range(pages), num_written=6)
            (alone,) = driver.forward([RowSpec(prefix, [3], [6])])
            self.assert_same(among_later, alone)
            (behind_all,) = driver.forward([RowSpec(holder, [3], [12])])
            (behind_some,) = driver.forward([RowSpec(prefix, [3], [12])])
            self.assert_different(behind_all, behind_some)

    def test_explicit_mask_states_any_rule(self) -> None:
        for driver in self.drivers():
            tokens, pages = self.prompt(driver, 10), driver.pages_for(12)
            holder = driver.holder(range(pages))
            driver.prefill(holder, tokens)
            columns = pages * driver.page_size
            causal = np.ones((2, columns + 2), bool)
            causal[0, -1] = False
            new, span = [7, 8], (10, 11)
            (plain,) = driver.forward([RowSpec(holder, new, span)])
            (masked,) = driver.forward([RowSpec(holder, new, span, mask=causal)])
            self.assert_same(masked, plain)
            causal[:, 4] = False
            (explicit,) = driver.forward([RowSpec(holder, new, span, mask=causal)])
            holder.hide(4, 5)
            (hidden,) = driver.forward([RowSpec(holder, new, span)])
            self.assert_same(explicit, hidden)
            self.assert_different(hidden, plain)

    def test_explicit_mask_separates_branches(self) -> None:
        """Two branches at equal positions in one row, as tree speculation runs them."""
        for driver in self.drivers():
            tokens, pages = self.prompt(driver, 5), driver.pages_for(5)
            holder = driver.holder(range(pages))
            driver.prefill(holder, tokens)
            (expected,) = driver.forward([RowSpec(holder, [3, 4], (5, 6))])
            mask = np.ones((4, pages * driver.page_size + 4), bool)
            mask[:, -4:] = [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]]
            row = RowSpec(holder, [9, 3, 8, 4], (5, 5, 6, 6), mask=mask)
            (branch,) = driver.forward([row])
            self.assert_same(branch, expected)

    def test_row_without_table(self) -> None:
        for driver in self.drivers():
            tokens = self.prompt(driver, 6)
            expected = driver.prefill(driver.holder(range(driver.pages_for(6))), tokens)
            (after,) = driver.forward([RowSpec(None, tokens, range(6))])
            self.assert_same(after, expected)

    def test_embeds_are_inputs_like_tokens(self) -> None:
        for driver in self.drivers():
            tokens = self.prompt(driver, 6)
            (expected,) = driver.forward([RowSpec(None, tokens, range(6))])
            embeds = ints(range(10, 16))
            row = RowSpec(None, [], range(6), embeds=embeds.tolist())
            result = driver.send_rows([row], embeds=EmbedRows(tokens=ints(tokens), embeds=embeds))
            assert not result.failures
            self.assert_same(driver.full_dist(result, 0), expected)

    def test_token_slots_stand_for_their_tokens(self) -> None:
        """The next message can run a sampled token before the host has seen it."""
        for driver in self.drivers():
            pages = driver.pages_for(8)
            holder, tokens = driver.holder(range(pages)), self.prompt(driver, 5)
            sample = SampleRows(
                embeds=ints([0]),
                sampler_index=ints([0]),
                samplers=[SamplerSpec()],
                positions=ints([5]),
                token_slots=ints([3]),
            )
            result = driver.send_rows([RowSpec(holder, tokens, range(5), range(5))], samples=sample)
            token = int(result.samples[0])
            assert token == int(np.argmax(driver.full_dist(result, 0)))
            holder.show(0, 5)
            (ahead,) = driver.forward([RowSpec(holder, [~3], [5])])
            (literal,) = driver.forward([RowSpec(holder, [token], [5])])
            self.assert_same(ahead, literal)
            result = driver.send_rows(
                [RowSpec(holder, [], [5], embeds=[9])],
                embeds=EmbedRows(tokens=ints([~3]), embeds=ints([9])),
            )
            self.assert_same(driver.full_dist(result, 0), literal)

    def test_scores_equal_distributions(self) -> None:
        for driver in self.drivers():
            tokens = self.prompt(driver, 7)
            forward = forward_rows([RowSpec(None, tokens, range(7))])
            forward.outputs[:] = np.arange(7)
            forward.score_targets = ints([*tokens[1:], -1])
            forward.num_scores = 3
            whole = np.full(7, driver.info.vocab_size, np.int32)
            result = driver.execute(
                forward=forward, dists=DistRows(embeds=ints(range(7)), top_k=whole)
            )
            assert result.score_ids.shape == (7, 3)
            for index in range(6):
                dist = driver.full_dist(result, index)
                assert abs(result.score_logprobs[index] - dist[tokens[index + 1]]) < 1e-3
                best = result.score_ids[index].tolist()
                np.testing.assert_allclose(result.score_top[index], dist[best], atol=1e-3)
                assert dist[best[0]] == dist.max()

    def test_distributions_are_sorted_and_cut(self) -> None:
        for driver in self.drivers():
            forward = forward_rows([RowSpec(None, self.prompt(driver, 4), range(4))])
            forward.outputs[2:] = [0, 1]
            dists = DistRows(embeds=ints([0, 1]), top_k=ints([5, driver.info.vocab_size]))
            result = driver.execute(forward=forward, dists=dists)
            assert result.dist_starts.tolist() == [0, 5, 5 + driver.info.vocab_size]
            for start, end in ((0, 5), (5, len(result.dist_probs))):
                assert np.all(np.diff(result.dist_probs[start:end]) <= 0)
            assert abs(float(result.dist_probs[5:].sum()) - 1) < 1e-3

    def test_a_bad_row_fails_alone(self) -> None:
        for driver in self.drivers():
            good = self.prompt(driver, 5)
            (expected,) = driver.forward([RowSpec(None, good, range(5))])
            bad = RowSpec(None, [driver.info.vocab_size], [0])
            forward = forward_rows([bad, RowSpec(None, good, range(5))])
            forward.outputs[-1] = 0
            whole = ints([driver.info.vocab_size])
            dists = DistRows(embeds=ints([0]), top_k=whole)
            result = driver.execute(forward=forward, dists=dists)
            assert [(failure.stage, failure.index) for failure in result.failures] == [
                ("forward", 0)
            ]
            self.assert_same(driver.full_dist(result, 0), expected)
