"""What a grammar may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """``compile_s``: of processor time, once. Large schemas take a tenth of it. ``step_s``: of
    processor time for each token, which large schemas take a few milliseconds of. ``memory_bytes``:
    beyond what the vocabulary takes."""

    compile_s: float = 0.5
    step_s: float = 0.1
    memory_bytes: int = 256 << 20
