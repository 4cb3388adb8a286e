"""The resource limits of a grammar."""

from __future__ import annotations

from dataclasses import dataclass

MAX_SOURCE_BYTES = 1 << 18
"""Larger schemas exist, but compiling them would delay a decode too long."""


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """``compile_s``: processor time of compilation; large schemas take a tenth of it. ``step_s``:
    processor time per token; large schemas take a few milliseconds. ``replay_s``: processor time of
    all tokens together that were generated before a sequence begins, or begins again.
    ``memory_bytes``: memory beyond the vocabulary's."""

    compile_s: float = 0.5
    step_s: float = 0.1
    replay_s: float = 2.0
    memory_bytes: int = 256 << 20
