"""The names of sessions that have ended, by which their traces are still found.

Owns the latest names of the node. Knows nothing of what the sessions did.
"""

from __future__ import annotations

from collections import OrderedDict

from quire.core.ids import ProgramId, TenantId

MAX_REMEMBERED = 1024


class EndedSessions:
    """Ended sessions by public id and by the client's id."""

    def __init__(self, max_remembered: int = MAX_REMEMBERED) -> None:
        self._max_remembered = max_remembered
        self._ended: OrderedDict[ProgramId, tuple[TenantId, str, str | None]] = OrderedDict()
        self._names: dict[tuple[TenantId, str], ProgramId] = {}

    def add(
        self, program: ProgramId, tenant: TenantId, public_id: str, client_id: str | None
    ) -> None:
        """Add an ended session. Of several with one client id, ``find`` returns the latest."""
        self._ended[program] = (tenant, public_id, client_id)
        for name in (public_id, client_id):
            if name is not None:
                self._names[tenant, name] = program
        if len(self._ended) > self._max_remembered:
            self._forget()

    def _forget(self) -> None:
        program, (tenant, *names) = self._ended.popitem(last=False)
        for name in names:
            if name is not None and self._names.get((tenant, name)) == program:
                del self._names[tenant, name]

    def find(self, tenant: TenantId, name: str) -> ProgramId | None:
        return self._names.get((tenant, name))

    def public_id(self, program: ProgramId) -> str | None:
        known = self._ended.get(program)
        return None if known is None else known[1]
