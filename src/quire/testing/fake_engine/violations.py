"""The error for messages that break the batch contract."""

from __future__ import annotations

from quire.core.errors import EngineFault


class ProtocolViolation(EngineFault):
    """A batch that no correct control layer sends; a real engine's behaviour would be undefined."""


def require(condition: bool, message: str) -> None:
    """Raise ``ProtocolViolation`` unless ``condition`` holds."""
    if not condition:
        raise ProtocolViolation(message)
