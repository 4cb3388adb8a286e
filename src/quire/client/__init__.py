"""A running node as Python sees it from outside: launch programs there, talk to them, end them.

Speaks the routes under ``/v1/programs`` (docs/reference/http.md) and nothing else; for generating
text there are the clients of OpenAI and Anthropic. Must not know the node, the server or the CLI.
"""

from quire.client.attachment import Attachment
from quire.client.node import Client, RemoteProgram

__all__ = ["Attachment", "Client", "RemoteProgram"]
