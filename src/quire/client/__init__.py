"""A client of a running node: launch programs there, exchange messages with them, end them.

Uses only the routes under ``/v1/programs`` (docs/reference/http.md); to generate text use the
clients of OpenAI and Anthropic. Must not know the node, the server or the CLI.
"""

from quire.client.attachment import Attachment
from quire.client.node import Client, RemoteProgram

__all__ = ["Attachment", "Client", "RemoteProgram"]
