"""A server made with the official package: ``python mcp_real_server.py [--json | --stdio]``.

Prints its port, then serves streamable HTTP on loopback; with ``--stdio`` it speaks over its
standard streams.
"""

from __future__ import annotations

import socket
import sys

from mcp.server import MCPServer

server = MCPServer("arithmetic")


@server.tool()
def add(left: int, right: int = 1) -> int:
    """Adds two numbers."""
    return left + right


@server.tool()
def divide(left: int, right: int) -> float:
    """Divides, and fails by zero."""
    return left / right


def serve_http() -> None:
    import uvicorn

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    app = server.streamable_http_app(json_response="--json" in sys.argv)
    config = uvicorn.Config(app, log_level="error")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    if "--stdio" in sys.argv:
        server.run("stdio")
    else:
        serve_http()
