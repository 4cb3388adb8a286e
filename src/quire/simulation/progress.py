"""How far a simulation is, for whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The state of a simulation at virtual time ``now_s``: how many programs and calls of them have
    ended, and how many it plays. Calls of a failed program that never ended are not counted."""

    now_s: float
    num_programs_over: int
    num_programs: int
    num_calls_over: int
    num_calls: int


Progress = Callable[[RunProgress], None]
"""Called with the state each time a call or a program ends."""
