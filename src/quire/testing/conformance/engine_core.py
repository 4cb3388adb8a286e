"""``EngineCoreSuite``: what every ``EngineCore`` must do, whatever its model.

Run it against an engine by subclassing in a test module::

    class TestTinyLlama(EngineCoreSuite):
        tolerance = 1e-4            # of log probabilities; see EngineSuite for the other settings

        def make_engine(self, pool):
            return build_engine(page_size=pool.page_size, num_blocks=pool.groups[0].num_blocks, ...)

        def make_tokenizer(self):
            return FakeTokenizer()

pytest collects the inherited tests. No test expects exact tokens: each states a relation (chunked
equals whole, a fork equals a recomputation, many steps equal single ones), which fails when
context, positions or masks are handled wrongly. Meant for small random weights in fp32; the
vocabulary must have at least 16 tokens. The tests of adapters run where the engine has two.
"""

from __future__ import annotations

from quire.testing.conformance.engine_adapters import EngineAdapterSuite
from quire.testing.conformance.engine_forward import EngineForwardSuite
from quire.testing.conformance.engine_memory import EngineMemorySuite
from quire.testing.conformance.engine_reposition import EngineRepositionSuite
from quire.testing.conformance.engine_sampling import EngineSamplingSuite
from quire.testing.conformance.engine_scores import EngineScoresSuite
from quire.testing.conformance.engine_sequences import EngineSequenceSuite


class EngineCoreSuite(
    EngineForwardSuite,
    EngineMemorySuite,
    EngineRepositionSuite,
    EngineSequenceSuite,
    EngineSamplingSuite,
    EngineAdapterSuite,
    EngineScoresSuite,
):
    """All engine suites at once."""
