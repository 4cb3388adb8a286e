"""Why programs or requests of a simulation have failed: a few lines on stderr below the table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from quire.cli.console import counted, escaped, messages

_MAX_REASONS = 3
_FIGURE = re.compile(r"\d+(?:\.\d+)?")


class SimulatedEnd(Protocol):
    """What was simulated, and the reason for which it failed; None if it did not."""

    @property
    def number(self) -> int: ...

    @property
    def error(self) -> str | None: ...


def tell_failures(label: str, noun: str, ended: Sequence[SimulatedEnd]) -> None:
    """Print how many of ``ended`` have failed under ``label``, and the reasons: of those that
    differ only in figures the first.

    ``noun``: what failed, in the singular.
    """
    reasons: dict[str, list[SimulatedEnd]] = {}
    for one in ended:
        if one.error is not None:
            reasons.setdefault(_FIGURE.sub("0", one.error), []).append(one)
    if not reasons:
        return
    num_failed = sum(map(len, reasons.values()))
    console = messages()
    console.print(f"{label}: {num_failed} of {counted(len(ended), noun)} failed", style="red")
    for alike in sorted(reasons.values(), key=len, reverse=True)[:_MAX_REASONS]:
        also = f" ({len(alike) - 1} more like it)" if len(alike) > 1 else ""
        console.print(escaped(f"  {noun} {alike[0].number}: {alike[0].error}{also}"))
    if len(reasons) > _MAX_REASONS:
        console.print(f"  and for {counted(len(reasons) - _MAX_REASONS, 'other reason')}")
