"""What the log says of a node that does not tell something: each complaint once.

Must not know what the node does not tell.
"""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

MAX_TOLD = 8
"""The most different complaints that are logged until the node tells again."""


class Complaints:
    """Complaints of which each is logged once until ``settle``, in whatever order they come: a lost
    node may refuse connections and break them off in turn. ``what`` begins each line, for example
    "node n tells no figures"."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._told: set[str] = set()

    def tell(self, complaint: str) -> None:
        if complaint not in self._told and len(self._told) < MAX_TOLD:
            self._told.add(complaint)
            logger.warning("%s: %s", self._what, complaint)

    def settle(self) -> None:
        """The node tells again, so later complaints are new."""
        self._told.clear()
