"""The fake engine: an ``EngineCore`` whose model is a hash of everything a token saw."""

from quire.testing.fake_engine.engine import FakeEngine, Script, StepTime, fake_pool
from quire.testing.fake_engine.violations import ProtocolViolation

__all__ = ["FakeEngine", "ProtocolViolation", "Script", "StepTime", "fake_pool"]
