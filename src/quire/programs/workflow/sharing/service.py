"""One program's access to the shared results of its tenant."""

from __future__ import annotations

import asyncio
from typing import Any

from quire.programs.services.operations import Identity, ProgramService, operation
from quire.programs.workflow.sharing.results import KeptResult, SharedResults


class SharingService(ProgramService):
    """Only native programs have it, because a program that stores a result under a key is trusted
    to have computed it."""

    def __init__(self, identity: Identity, results: SharedResults) -> None:
        self._tenant, self._results = identity.tenant, results
        self._own: set[bytes] = set()

    @operation("shared.begin")
    async def begin(self, key: bytes) -> tuple[str, Any]:
        """Return ``kept`` or ``in flight`` with the result, or ``own``: the program must compute it
        and then call ``shared.end``."""
        while True:
            found = self._results.begin(self._tenant, key)
            if found is None:
                self._own.add(key)
                return "own", None
            if isinstance(found, KeptResult):
                return "kept", found.value
            value = await asyncio.shield(asyncio.wrap_future(found))
            if value is not None:
                self._results.note_waited()
                return "in flight", value[0]

    @operation("shared.end")
    async def end(self, key: bytes, value: Any, num_bytes: int) -> None:
        self._own.remove(key)
        self._results.end(self._tenant, key, (value, num_bytes))

    @operation("shared.fail")
    async def fail(self, key: bytes) -> None:
        self._own.remove(key)
        self._results.end(self._tenant, key, None)

    @operation("shared.function")
    async def function(self, function: Any) -> int | None:
        return self._results.number_of(function)

    def close(self) -> None:
        while self._own:
            self._results.end(self._tenant, self._own.pop(), None)
