"""Conformance suites: one per Protocol of ``quire.core``, for fakes and real implementations alike.

Each is a class of tests; subclass it, say how to make the thing under test, let pytest collect it.
"""

from quire.testing.conformance.engine_core import EngineCoreSuite
from quire.testing.conformance.policy import DispatchPolicySuite, PolicySuite
from quire.testing.conformance.processor import ProcessorSuite
from quire.testing.conformance.program_port import ProgramPortSuite
from quire.testing.conformance.tokenizer import TokenizerSuite

__all__ = [
    "DispatchPolicySuite",
    "EngineCoreSuite",
    "PolicySuite",
    "ProcessorSuite",
    "ProgramPortSuite",
    "TokenizerSuite",
]
