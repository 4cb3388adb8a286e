"""Fakes and test tools for programs, policies and engines, without weights, server or processes.

* To test a program: ``scripted_node`` runs it with a model whose answers the test chooses
  (``answers``, ``ScriptedModel``). ``LocalNode`` runs it on a ``FakeEngine``, whose every token is
  a hash of all tokens that it attended to; ``expected_tokens`` and its neighbours compute these
  tokens for a text, ``ReferenceProgram`` for pages and masks.
* To test control or a policy: ``ControlHarness`` sends commands to a controller and completes its
  batch messages one by one, in the time of a ``VirtualClock``.
* To test processes: ``Relay`` connects two of them with a delay, or with a link that fails.
* ``FakeEncoder`` and ``FakeTokenizer`` replace the real ones.

The suites that every implementation of a Protocol must pass are in ``quire.testing.conformance``.
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
