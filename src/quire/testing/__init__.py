"""Fakes, a test kit and conformance suites for programs, policies and engines built on Quire.

``LocalNode`` runs programs against fake engines in one event loop, ``scripted_node`` does so with a
model whose answers the test gives; ``ControlHarness`` drives the controller by hand;
``FakeEngine``, ``FakeEncoder``, ``VirtualClock`` and ``FakeTokenizer`` replace the real ones;
``ReferenceProgram`` and ``expected_tokens`` compute the expected results; ``Relay`` connects real
processes with the delay of a distance, or by a link that fails. The suites that every
implementation of a Protocol must pass are in ``quire.testing.conformance``.
"""

from quire.simulation import ControlCore
from quire.simulation.clock import VirtualClock
from quire.testing.fake_encoder import FakeEncoder
from quire.testing.fake_engine import FakeEngine, ProtocolViolation, StepTime, fake_pool
from quire.testing.harness import CommandOutcome, ControlHarness, NoProgress
from quire.testing.local_node import LocalNode, scripted_node
from quire.testing.local_port import LocalPort
from quire.testing.oracle import (
    ExpectedDecode,
    ReferenceContext,
    SeenToken,
    expected_decode,
    expected_dist,
    expected_logprobs,
    expected_tokens,
    token_content,
)
from quire.testing.reference_program import ReferencePage, ReferenceProgram
from quire.testing.relay import Relay
from quire.testing.scripted import ScriptedModel, answers
from quire.testing.tokenizer import FakeTokenizer

__all__ = [
    "CommandOutcome",
    "ControlCore",
    "ControlHarness",
    "ExpectedDecode",
    "FakeEncoder",
    "FakeEngine",
    "FakeTokenizer",
    "LocalNode",
    "LocalPort",
    "NoProgress",
    "ProtocolViolation",
    "ReferenceContext",
    "ReferencePage",
    "ReferenceProgram",
    "Relay",
    "ScriptedModel",
    "SeenToken",
    "StepTime",
    "VirtualClock",
    "answers",
    "expected_decode",
    "expected_dist",
    "expected_logprobs",
    "expected_tokens",
    "fake_pool",
    "scripted_node",
    "token_content",
]
