"""Sequences: steps, stop predicates, room, epochs, resuming."""

from __future__ import annotations

from typing import Any

from quire.core.batch import CloseSequences, ExtendSequence
from quire.core.batch_result import SequenceEnd
from quire.core.decoding import StopSpec
from quire.core.ids import SequenceId
from quire.testing.conformance.engine_driver import EngineDriver
from quire.testing.conformance.engine_rows import RowSpec, SequenceOutput, gather
from quire.testing.conformance.engine_suite import EngineSuite


class EngineSequenceSuite(EngineSuite):
    """Stage 5 of the batch message."""

    def decode(self, driver: EngineDriver, stop: StopSpec, **options: Any) -> SequenceOutput:
        """A greedy decode of a fixed prompt over the first blocks."""
        prompt = self.prompt(driver, 6)
        return driver.decode(range(driver.pages_for(24)), prompt, stop, **options)

    def test_decoding_equals_prefilling_its_output(self) -> None:
        for driver in self.drivers():
            decoded = self.decode(driver, StopSpec(max_tokens=10))
            assert decoded.end is SequenceEnd.MAX_TOKENS
            tokens = self.prompt(driver, 6) + decoded.tokens
            holder = driver.holder(range(driver.pages_for(24)))
            for index in range(6, 16):
                after = (
                    driver.prefill(holder, tokens[index - 1 : index], start=index - 1)
                    if (index > 6)
                    else driver.prefill(holder, tokens[:6])
                )
                assert int(after.argmax()) == tokens[index]

    def test_several_steps_equal_single_steps(self) -> None:
        for driver in self.drivers():
            single = self.decode(driver, StopSpec(max_tokens=11))
            for num_steps in (2, 4, 16):
                assert self.decode(driver, StopSpec(max_tokens=11), num_steps=num_steps) == single

    def test_sequences_of_one_message_do_not_touch(self) -> None:
        for driver in self.drivers():
            stop, pages = StopSpec(max_tokens=6), driver.pages_for(12)
            prompts = [self.prompt(driver, 3 + i, seed=i) for i in range(3)]
            alone = [driver.decode(range(pages), prompt, stop) for prompt in prompts]
            together = [SequenceOutput() for _ in prompts]
            for index, prompt in enumerate(prompts):
                holder = driver.holder(range(index * pages, (index + 1) * pages))
                gather(
                    together[index],
                    driver.start(driver.open(index, holder, prompt, stop), holder),
                    0,
                )
            for _ in range(5):
                report = driver.advance([2, 0, 1])
                assert report.sequences.tolist() == [2, 0, 1]
                for row, sequence in enumerate((2, 0, 1)):
                    gather(together[sequence], report, row)
            assert together == alone

    def test_stop_tokens_end_it_and_belong_to_it(self) -> None:
        for driver in self.drivers():
            free = self.decode(driver, StopSpec(max_tokens=10)).tokens
            stop_token = free[6]
            cut = free.index(stop_token) + 1
            for num_steps in (1, 8):
                stopped = self.decode(
                    driver, StopSpec(max_tokens=10, token_ids=(stop_token,)), num_steps=num_steps
                )
                assert stopped.tokens == free[:cut]
                assert (stopped.end, stopped.matched) == (SequenceEnd.STOP_TOKEN, stop_token)

    def test_min_tokens_hold_stop_tokens_back(self) -> None:
        for driver in self.drivers():
            first = self.decode(driver, StopSpec(max_tokens=1)).tokens[0]
            stop = StopSpec(max_tokens=9, min_tokens=4, token_ids=(first,))
            held = self.decode(driver, stop)
            assert first not in held.tokens[:4]
            assert len(held.tokens) >= 5

    def test_stop_strings_end_it_where_they_are_complete(self) -> None:
        tokenizer = self.make_tokenizer()
        for driver in self.drivers():
            free = self.decode(driver, StopSpec(max_tokens=10)).tokens
            texts = [tokenizer.token_bytes(token) for token in free]
            needle = b"".join(texts[3:6])
            assert needle, "the prompt makes the model say special tokens only"
            ends = [i for i in range(1, 11) if needle in b"".join(texts[:i])]
            stop = StopSpec(max_tokens=10, strings=(b"\x00never\x00", needle))
            for num_steps in (1, 8):
                stopped = self.decode(driver, stop, num_steps=num_steps)
                assert stopped.tokens == free[: ends[0]]
                assert (stopped.end, stopped.matched) == (SequenceEnd.STOP_STRING, 1)

    def test_room_is_a_limit(self) -> None:
        """The last sampled token needs no slot, so one token more than the pages hold is
        sampled."""
        for driver in self.drivers():
            free = self.decode(driver, StopSpec(max_tokens=12)).tokens
            for num_steps in (1, 16):
                full = self.decode(driver, StopSpec(max_tokens=12), limit=10, num_steps=num_steps)
                assert full.end is SequenceEnd.NO_ROOM
                assert full.tokens == free[:5]

    def test_extending_gives_room(self) -> None:
        for driver in self.drivers():
            free, pages = self.decode(driver, StopSpec(max_tokens=9)), driver.pages_for(24)
            prompt = self.prompt(driver, 6)
            holder = driver.holder(range(driver.pages_for(7)))
            room = len(holder.blocks) * driver.page_size - 6
            decoded = SequenceOutput()
            opened = driver.open(0, holder, prompt, StopSpec(max_tokens=9))
            gather(decoded, driver.start(opened, holder), 0)
            if room < 8:
                gather(decoded, driver.advance([0], num_steps=room), 0)
                assert decoded.end is SequenceEnd.RUNNING
            longer = driver.holder(range(pages))
            append = longer.write()
            append.table, append.start = holder.table, len(holder.blocks)
            append.blocks, append.visible = (
                append.blocks[append.start :],
                append.visible[append.start :],
            )
            extend = ExtendSequence(sequence=SequenceId(0), limit=pages * driver.page_size)
            report = driver.advance([0], num_steps=16, operations=[append, extend])
            gather(decoded, report, 0)
            assert decoded == free

    def test_ended_and_stale_rows_are_inert(self) -> None:
        for driver in self.drivers():
            pages, stop = driver.pages_for(24), StopSpec(max_tokens=2)
            holder = driver.holder(range(pages))
            opened = driver.open(0, holder, self.prompt(driver, 6), stop, epoch=1)
            assert driver.start(opened, holder, num_steps=4).ends.tolist() == [
                SequenceEnd.MAX_TOKENS
            ]
            inert = driver.advance([0], num_steps=2)
            assert inert.token_starts.tolist() == [0, 0]
            assert inert.ends.tolist() == [SequenceEnd.RUNNING]
            driver.close_sequence(0, holder)
            holder = driver.holder(range(pages))
            expected = self.prompt(driver, 4, seed=5)
            reopened = driver.open(0, holder, expected, StopSpec(max_tokens=5), epoch=2)
            decoded = SequenceOutput()
            gather(decoded, driver.start(reopened, holder), 0)
            stale = driver.advance([0], epochs=[1], num_steps=2)
            assert stale.token_starts.tolist() == [0, 0]
            assert stale.epochs.tolist() == [1]
            gather(decoded, driver.advance([0], epochs=[2], num_steps=8), 0)
            driver.close_sequence(0, holder)
            fresh = driver.decode(range(pages), expected, StopSpec(max_tokens=5))
            assert decoded == fresh

    def test_no_tokens_wanted(self) -> None:
        for driver in self.drivers():
            decoded = self.decode(driver, StopSpec(max_tokens=0))
            assert (decoded.tokens, decoded.end) == ([], SequenceEnd.MAX_TOKENS)

    def test_resumes_where_it_was_preempted(self) -> None:
        """Closed after five tokens and reopened with its history, it continues unchanged."""
        for driver in self.drivers():
            stop, pages = StopSpec(max_tokens=11), driver.pages_for(24)
            free = self.decode(driver, stop)
            prompt = self.prompt(driver, 6)
            history = prompt + free.tokens[:5]
            holder = driver.holder(range(pages, 2 * pages))
            driver.prefill(holder, history[:-1])
            resumed = SequenceOutput(tokens=free.tokens[:5])
            opened = driver.open(1, holder, history, stop, epoch=3, num_generated=5)
            report = driver.start(opened, holder, num_steps=3, from_slot=len(history) - 1)
            gather(resumed, report, 0)
            while resumed.end is SequenceEnd.RUNNING:
                gather(resumed, driver.advance([1], epochs=[3], num_steps=3), 0)
            assert resumed == free

    def test_sequence_pages_are_pages(self) -> None:
        """Tokens that a sequence appended are visible in its table, and rows can attend to them."""
        for driver in self.drivers():
            pages, prompt = driver.pages_for(24), self.prompt(driver, 6)
            holder = driver.holder(range(pages))
            opened = driver.open(0, holder, prompt, StopSpec(max_tokens=20))
            decoded = SequenceOutput()
            gather(decoded, driver.start(opened, holder, num_steps=4), 0)
            driver.execute(operations=[CloseSequences(sequences=[SequenceId(0)])])
            ran = prompt + decoded.tokens[:-1]
            shared = driver.holder(range(pages), num_written=len(ran))
            (after,) = driver.forward([RowSpec(shared, [7], [len(ran)])])
            alone = driver.holder(range(pages, 2 * pages))
            driver.prefill(alone, ran)
            (expected,) = driver.forward([RowSpec(alone, [7], [len(ran)])])
            self.assert_same(after, expected)
