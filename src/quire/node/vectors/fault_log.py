"""``FaultLog``: logs why a store cannot be used. A tenant need not know the host, role or directory
that the reason may name."""

from __future__ import annotations

import logging


class FaultLog:
    """Logs a reason once until the store works again. For any thread."""

    def __init__(self, logger: logging.Logger, store: str) -> None:
        self._logger, self._store = logger, store
        self._logged = ""

    def fails(self, why: str) -> None:
        if why != self._logged:
            self._logged = why
            self._logger.warning("%s cannot be used now: %s", self._store, why)

    def works(self) -> None:
        self._logged = ""
