"""The HTTP edge of a node: OpenAI-compatible routes, programs over WebSocket, metrics.

Routes are thin: they parse, identify the session, start a built-in program and format its output.
The application itself is ``quire.server.app``, which takes a while to import.
"""

from quire.server.serve import Service, bind, run

__all__ = ["Service", "bind", "run"]
