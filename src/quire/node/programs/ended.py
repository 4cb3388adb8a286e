"""Which ended programs are kept: the newest of each tenant, within limits.

Owns the limits on their number and on the bytes that they keep. Knows ids only.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from quire.core.ids import TenantId


@dataclass(slots=True)
class _Remembered:
    """The ended programs of one tenant (id, bytes), oldest first."""

    entries: deque[tuple[str, int]] = field(default_factory=deque)
    num_bytes: int = 0


class EndedPrograms:
    """``max_programs`` and ``max_bytes`` apply to each tenant; the newest program is kept whatever
    its size."""

    def __init__(self, max_programs: int, max_bytes: int) -> None:
        self._max_programs = max_programs
        self._max_bytes = max_bytes
        self._tenants: dict[TenantId, _Remembered] = {}

    def add(self, tenant: TenantId, program: str, num_bytes: int) -> list[str]:
        """Add ``program``, which has ended and keeps ``num_bytes``. Return the ids to forget."""
        kept = self._tenants.setdefault(tenant, _Remembered())
        kept.entries.append((program, num_bytes))
        kept.num_bytes += num_bytes
        forgotten = []
        while self._is_over(kept):
            oldest, freed = kept.entries.popleft()
            kept.num_bytes -= freed
            forgotten.append(oldest)
        return forgotten

    def drop(self, tenant: TenantId, program: str) -> None:
        """Keep ``program`` no more, if it is kept."""
        kept = self._tenants.get(tenant, _Remembered())
        for entry in kept.entries:
            if entry[0] == program:
                kept.entries.remove(entry)
                kept.num_bytes -= entry[1]
                return

    def _is_over(self, kept: _Remembered) -> bool:
        num = len(kept.entries)
        return num > self._max_programs or (num > 1 and kept.num_bytes > self._max_bytes)
