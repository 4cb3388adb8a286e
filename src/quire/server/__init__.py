"""The HTTP edge of a node: OpenAI-compatible routes, programs over WebSocket, metrics.

Routes are thin: they parse, identify the session, start a built-in program and format its output.
The application is ``quire.server.app``, what runs it ``quire.server.serve``. Nothing is imported
here: both take a while, and a router with the processes that it starts needs little of either.
"""
