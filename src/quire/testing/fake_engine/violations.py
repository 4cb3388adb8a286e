"""How the fake engine says that it was sent a message which breaks the batch contract."""

from __future__ import annotations

from quire.core.errors import EngineFault


class ProtocolViolation(EngineFault):
    """A batch that no correct control layer sends. A real engine may do anything with it."""


def require(condition: bool, message: str) -> None:
    """Raise ``ProtocolViolation`` unless ``condition`` holds."""
    if not condition:
        raise ProtocolViolation(message)
