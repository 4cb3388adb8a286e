"""uvicorn's protocol of WebSockets, for handshakes that are refused with a response.

Must not know why a handshake is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """A handshake is over when it is refused with a whole response, too (ASGI's extension
    ``websocket.http.response``). uvicorn says of each such handshake, as an error, that the
    application has returned without completing it."""

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        said: Any = message
        if said["type"] == "websocket.http.response.body" and not said.get("more_body", False):
            self.handshake_complete = True
