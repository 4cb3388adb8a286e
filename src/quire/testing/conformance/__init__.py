"""Conformance suites: one per Protocol of ``quire.core``, for fakes and real implementations alike.

Each is a class of tests. Subclass it, define how to make the object under test, let pytest collect
it.
"""

from quire.testing.conformance.engine_core import EngineCoreSuite
from quire.testing.conformance.engine_exchange import EngineExchangeSuite
from quire.testing.conformance.kv_transport import KVTransportSuite
from quire.testing.conformance.policy import DispatchPolicySuite, PolicySuite
from quire.testing.conformance.processor import ProcessorSuite
from quire.testing.conformance.program_port import ProgramPortSuite
from quire.testing.conformance.tokenizer import TokenizerSuite

__all__ = [
    "DispatchPolicySuite",
    "EngineCoreSuite",
    "EngineExchangeSuite",
    "KVTransportSuite",
    "PolicySuite",
    "ProcessorSuite",
    "ProgramPortSuite",
    "TokenizerSuite",
]
