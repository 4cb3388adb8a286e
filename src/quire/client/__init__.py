"""A client of a running node: launches programs there, exchanges messages with them, ends them; and
marks which calls of other clients belong together.

Uses only the routes under ``/v1/programs``, ``/v1/sessions`` and ``/v1/microserving``
(docs/reference/http.md); to generate text use the clients of OpenAI and Anthropic, which ``track``
tags. Importing this package changes nothing. Must not know the node, the server or the CLI.
"""

from quire.client.attachment import Attachment
from quire.client.microserving import Microserving
from quire.client.node import Client, RemoteProgram
from quire.client.programs import carried
from quire.client.tracking import program, track

__all__ = [
    "Attachment",
    "Client",
    "Microserving",
    "RemoteProgram",
    "carried",
    "program",
    "track",
]
