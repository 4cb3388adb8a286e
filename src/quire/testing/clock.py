"""A clock that moves only when a test says so."""

from __future__ import annotations

from quire.simulation.clock import VirtualClock as FakeClock

__all__ = ["FakeClock"]
