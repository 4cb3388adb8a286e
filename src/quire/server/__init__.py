"""The HTTP edge of a node: OpenAI-compatible routes, programs over WebSocket, metrics.

Routes are thin: they parse, identify the caller, start a built-in program and format what it says.
"""

from quire.server.app import create_app
from quire.server.serve import Service, bind, run

__all__ = ["Service", "bind", "create_app", "run"]
