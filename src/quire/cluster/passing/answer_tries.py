"""How often a request is tried until an answer begins. Knows neither nodes nor requests."""

from __future__ import annotations

MAX_FAILED = 4
"""A request that nodes are lost with may be why: it must not be tried at all of them."""


class AnswerTries:
    """The tries that are ``left`` to one request. The first refusal of a node is none of them:
    nothing was done there, and the request goes on until no other node is left."""

    def __init__(self) -> None:
        self.left = MAX_FAILED
        self._refusing: set[str] = set()

    def failed(self) -> None:
        """Note that no answer has begun: its node was lost, or its strategy was withdrawn."""
        self.left -= 1

    def refused_by(self, engine: str) -> None:
        """Note that ``engine`` takes nothing now."""
        if engine in self._refusing:
            self.failed()
        self._refusing.add(engine)
