"""``FaultLog``: logs why a vector store or search server cannot be used. A tenant need not know the
host, role or directory that the reason may name."""

from __future__ import annotations

import logging


class FaultLog:
    """Logs a reason once until ``what`` works again. For any thread."""

    def __init__(self, logger: logging.Logger, what: str) -> None:
        self._logger, self._what = logger, what
        self._logged = ""

    def fails(self, why: str) -> None:
        if why != self._logged:
            self._logged = why
            self._logger.warning("%s cannot be used now: %s", self._what, why)

    def works(self) -> None:
        self._logged = ""
