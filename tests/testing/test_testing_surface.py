"""The public surface of ``quire.testing``: users' tests depend on it."""

from __future__ import annotations

import quire.testing
from quire.testing import conformance

NAMES = """
    CommandOutcome ControlCore ControlHarness ExpectedDecode FakeEncoder FakeEngine FakeTokenizer
    LocalNode LocalPort NoProgress ProtocolViolation ReferenceContext ReferencePage
    ReferenceProgram Relay ScriptedModel SeenToken StepTime VirtualClock answers expected_decode
    expected_dist expected_logprobs expected_tokens fake_pool scripted_node token_content
"""

SUITES = """
    DispatchPolicySuite EngineCoreSuite EngineExchangeSuite KVTransportSuite PolicySuite
    ProcessorSuite ProgramPortSuite TokenizerSuite
"""


def test_names() -> None:
    assert quire.testing.__all__ == NAMES.split()
    assert conformance.__all__ == SUITES.split()
    for module in (quire.testing, conformance):
        assert all(getattr(module, name).__doc__ for name in module.__all__)
