"""Sampling: processors, seeds, log probabilities, grammars. Relations only, no exact tokens."""

from __future__ import annotations

import re

import pytest

from quire.core.batch import CloseSequences
from quire.core.batch_result import SequenceEnd
from quire.core.decoding import GrammarSpec, Params, Processor, SamplerSpec, StopSpec
from quire.core.ids import SequenceId
from quire.core.traits import Trait
from quire.testing.conformance.engine_driver import EngineDriver
from quire.testing.conformance.engine_rows import SequenceOutput, gather
from quire.testing.conformance.engine_suite import EngineSuite


def remembering_samplers() -> list[SamplerSpec]:
    """Samplers whose choices depend on earlier tokens, each in a different way."""
    penalised = (
        Processor("repetition_penalty", {"penalty": 1.5}),
        Processor("frequency_penalty", {"penalty": 0.5}),
        Processor("presence_penalty", {"penalty": 0.5}),
        Processor("temperature", {"temperature": 1.5}),
        Processor("top_p", {"p": 0.9}),
    )
    narrow = Processor("allowed_tokens", {"tokens": [5, 6, 7]})
    dry = Processor("dry", {"multiplier": 2.0, "allowed_length": 1, "breakers": [7]})
    words: Params = {"tokens": [[5, 5], [6, 7, 5], [6, 6, 6]]}
    return [
        SamplerSpec(penalised, greedy=False, seed=1),
        SamplerSpec((narrow, dry), greedy=False, seed=2),
        SamplerSpec((narrow, dry)),
        SamplerSpec((narrow, Processor("bad_words", words)), greedy=False, seed=3),
        SamplerSpec((Processor("typical", {"p": 0.8}), dry), greedy=False, seed=4),
    ]


class EngineSamplingSuite(EngineSuite):
    """Properties of samplers that hold in any engine."""

    def sample(
        self, driver: EngineDriver, *processors: Processor, seed: int | None = None
    ) -> list[int]:
        """Eight tokens after a fixed prompt."""
        sampler = SamplerSpec(processors, greedy=seed is None, seed=seed)
        return driver.decode(
            range(driver.pages_for(16)),
            self.prompt(driver, 6),
            StopSpec(max_tokens=8),
            sampler=sampler,
        ).tokens

    def test_same_seed_same_tokens(self) -> None:
        for driver in self.drivers():
            hot = Processor("temperature", {"temperature": 3.0})
            assert self.sample(driver, hot, seed=5) == self.sample(driver, hot, seed=5)
            others = {tuple(self.sample(driver, hot, seed=seed)) for seed in range(5, 15)}
            assert len(others) > 1

    def test_seeds_do_not_depend_on_the_batch(self) -> None:
        for driver in self.drivers():
            pages, stop = driver.pages_for(14), StopSpec(max_tokens=6)
            hot = (Processor("temperature", {"temperature": 2.0}),)
            samplers = [SamplerSpec(hot, greedy=False, seed=seed) for seed in (3, 4)]
            prompt = self.prompt(driver, 6)
            alone = [driver.decode(range(pages), prompt, stop, sampler=s) for s in samplers]
            together = [SequenceOutput(), SequenceOutput()]
            for index, sampler in enumerate(samplers):
                holder = driver.holder(range(index * pages, (index + 1) * pages))
                opened = driver.open(index, holder, prompt, stop, sampler=sampler)
                gather(together[index], driver.start(opened, holder), 0)
            report = driver.advance([1, 0], num_steps=8)
            gather(together[1], report, 0)
            gather(together[0], report, 1)
            assert together == alone

    def test_one_candidate_is_greedy(self) -> None:
        for driver in self.drivers():
            greedy = self.sample(driver)
            assert self.sample(driver, Processor("top_k", {"k": 1}), seed=1) == greedy
            assert self.sample(driver, Processor("top_p", {"p": 1e-9}), seed=1) == greedy
            assert self.sample(driver, Processor("min_p", {"p": 1.0}), seed=1) == greedy
            assert self.sample(driver, Processor("allowed_tokens", {"tokens": [3]})) == [3] * 8
            cold = Processor("temperature", {"temperature": 1e-6})
            assert self.sample(driver, cold, seed=1) == greedy

    def test_top_k_bounds_the_choice(self) -> None:
        for driver in self.drivers():
            hot = Processor("temperature", {"temperature": 50.0})
            first_three = set()
            for seed in range(20):
                tokens = self.sample(driver, Processor("top_k", {"k": 3}), hot, seed=seed)
                first_three.add(tokens[0])
            assert 1 < len(first_three) <= 3

    def test_bias_and_bad_words_rule(self) -> None:
        for driver in self.drivers():
            forced = Processor("logit_bias", {"tokens": [11], "biases": [1e4]})
            assert self.sample(driver, forced) == [11] * 8
            banned = Processor("bad_words", {"tokens": [11]})
            assert 11 not in self.sample(driver, forced, banned)

    def test_a_word_is_forbidden_at_its_last_token(self) -> None:
        for driver in self.drivers():
            biases: Params = {"tokens": [11, 12], "biases": [2e4, 1e4]}
            loud = Processor("logit_bias", biases)
            no_pair = Processor("bad_words", {"tokens": [[11, 11]]})
            assert self.sample(driver, loud, no_pair) == [11, 12] * 4
            no_triple = Processor("bad_words", {"tokens": [[11, 11, 11], [12, 11, 12]]})
            assert self.sample(driver, loud, no_triple) == [11, 11, 12] * 2 + [11, 11]

    def test_dry_ends_a_repetition(self) -> None:
        for driver in self.drivers():
            biases: Params = {"tokens": [11, 12], "biases": [2_000.0, 1_000.0]}
            loud = Processor("logit_bias", biases)
            dry: Params = {"multiplier": 700.0, "base": 2.0, "allowed_length": 2}
            # DRY penalises 11 after 11 11 by 700, then by 1400, which exceeds the lead over 12
            assert self.sample(driver, loud, Processor("dry", dry))[:5] == [11, 11, 11, 11, 12]
            broken = Processor("dry", {**dry, "breakers": [11]})
            assert self.sample(driver, loud, broken) == [11] * 8

    def test_samplers_are_rebuilt_from_history(self) -> None:
        """A sequence that was preempted half-way continues unchanged: the state of its sampler is
        rebuilt from its tokens."""
        for driver in self.drivers():
            prompt, pages, stop = self.prompt(driver, 6), driver.pages_for(20), StopSpec(12)
            for sampler in remembering_samplers():
                whole = driver.decode(range(pages), prompt, stop, sampler=sampler)
                for cut in (1, 5, 11):
                    holder = driver.holder(range(pages))
                    opened = driver.open(
                        1,
                        holder,
                        prompt + whole.tokens[:cut],
                        stop,
                        sampler=sampler,
                        num_generated=cut,
                    )
                    resumed = SequenceOutput()
                    gather(resumed, driver.start(opened, holder, num_steps=12), 0)
                    assert resumed.tokens == whole.tokens[cut:]
                    driver.execute(operations=[CloseSequences(sequences=[SequenceId(1)])])

    def test_samplers_do_not_depend_on_the_batch(self) -> None:
        """Samplers of all kinds in one message, in any order, sample what each samples alone."""
        samplers = [SamplerSpec(), *remembering_samplers()]
        for driver in self.drivers():
            pages, stop = driver.pages_for(12), StopSpec(max_tokens=6)
            if len(samplers) * pages > driver.info.pool.groups[0].num_blocks:
                samplers = samplers[: driver.info.pool.groups[0].num_blocks // pages]
            prompt = self.prompt(driver, 6)
            alone = [driver.decode(range(pages), prompt, stop, sampler=s) for s in samplers]
            together = [SequenceOutput() for _ in samplers]
            for index, sampler in enumerate(samplers):
                holder = driver.holder(range(index * pages, (index + 1) * pages))
                opened = driver.open(index, holder, prompt, stop, sampler=sampler)
                gather(together[index], driver.start(opened, holder), 0)
            order = list(range(len(samplers)))[::-1]
            for _ in range(5):
                report = driver.advance(order)
                for place, index in enumerate(order):
                    gather(together[index], report, place)
                order = order[1:] + order[:1]
            assert together == alone

    def test_penalties_discourage_repetition(self) -> None:
        for driver in self.drivers():
            prompt = self.prompt(driver, 6)
            first, second = [token for token in range(16) if token not in prompt][:2]
            biases: Params = {"tokens": [first, second], "biases": [10_000.0, 9_000.0]}
            loud = Processor("logit_bias", biases)
            once = self.sample(driver, loud, Processor("presence_penalty", {"penalty": 5_000.0}))
            assert once == [first, second] + [first] * 6
            turns = self.sample(driver, loud, Processor("frequency_penalty", {"penalty": 1_500.0}))
            assert turns == [first, second] * 4
            halved = self.sample(driver, loud, Processor("repetition_penalty", {"penalty": 2.0}))
            assert halved == [first, second] + [first] * 6

    def test_logprobs_are_those_of_the_model(self) -> None:
        """They are taken before processors and equal the distribution of a forward pass."""
        for driver in self.drivers():
            prompt, pages = self.prompt(driver, 6), driver.pages_for(12)
            hot = (Processor("temperature", {"temperature": 4.0}),)
            decoded = driver.decode(
                range(pages),
                prompt,
                StopSpec(max_tokens=5),
                sampler=SamplerSpec(hot, greedy=False, seed=2),
                num_logprobs=3,
            )
            for index, (token, logprob) in enumerate(
                zip(decoded.tokens, decoded.logprobs, strict=True)
            ):
                holder = driver.holder(range(pages))
                dist = driver.prefill(holder, prompt + decoded.tokens[:index])
                assert abs(dist[token] - logprob) < max(self.tolerance, 1e-3)

    def test_grammar_binds_the_output(self) -> None:
        tokenizer = self.make_tokenizer()
        for driver in self.drivers():
            if Trait.GRAMMAR not in driver.info.traits:
                pytest.skip("the engine does not list the Grammar trait")
            decoded = driver.decode(
                range(driver.pages_for(40)),
                self.prompt(driver, 6),
                StopSpec(max_tokens=30),
                grammar=GrammarSpec("regex", "[a-c]{3}x(ab|cd)"),
            )
            text = b"".join(tokenizer.token_bytes(token) for token in decoded.tokens).decode()
            assert re.fullmatch("[a-c]{3}x(ab|cd)", text)
            assert decoded.end is SequenceEnd.GRAMMAR
