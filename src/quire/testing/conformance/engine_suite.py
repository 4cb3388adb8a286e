"""Shared parts of the engine suites: the factory, prompts over any vocabulary, comparisons."""

from __future__ import annotations

import numpy as np

from quire.core.engine_info import PoolSpec
from quire.core.interfaces import EngineCore, Tokenizer
from quire.testing.conformance.engine_driver import EngineDriver, Logprobs
from quire.testing.fake_engine import fake_pool
from quire.testing.fake_engine.hashing import draw_uniform


class EngineSuite:
    """Base of the suites. Subclass one, define how to make an engine, let pytest collect it.

    ``tolerance``   largest difference between log probabilities that must be equal. ``page_sizes``
    every test runs with each. ``num_blocks`` and the other pool figures are requested from
    ``make_engine``; an engine may have more of everything but the page size, and no disk.
    """

    tolerance = 1e-4
    page_sizes: tuple[int, ...] = (1, 2, 16)

    def make_engine(self, pool: PoolSpec) -> EngineCore:
        """A fresh engine with that pool."""
        raise NotImplementedError("say how to make the engine under test")

    def make_tokenizer(self) -> Tokenizer:
        """The engine's tokenizer (for stop strings and grammars)."""
        raise NotImplementedError("say which tokenizer the engine has")

    def drivers(self) -> list[EngineDriver]:
        """One driver per page size, each with a fresh engine."""
        return [
            EngineDriver(
                self.make_engine(
                    fake_pool(page_size=size, num_blocks=max(16, 96 // size), num_disk_blocks=32)
                )
            )
            for size in self.page_sizes
        ]

    def prompt(self, driver: EngineDriver, num_tokens: int, seed: int = 0) -> list[int]:
        """Pseudo-random tokens, the same for every engine of one vocabulary size."""
        size = min(driver.info.vocab_size, 250)
        return [int(draw_uniform(seed + 1, position) * size) for position in range(num_tokens)]

    def assert_same(self, actual: Logprobs, expected: Logprobs) -> None:
        difference = float(np.max(np.abs(actual - expected)))
        assert difference <= self.tolerance, (
            f"log probabilities differ by {difference}, more than {self.tolerance}"
        )

    def assert_different(self, actual: Logprobs, expected: Logprobs) -> None:
        """Guards a test whose context might not influence the result at all."""
        difference = float(np.max(np.abs(actual - expected)))
        assert difference > self.tolerance, "a change of context changed nothing"
