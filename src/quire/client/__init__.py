"""Python clients of a running node.

* ``Client`` launches programs on the node and queries its workflows; ``RemoteProgram`` is one
  launched program, ``Attachment`` a connection to its messages.
* ``track`` makes an OpenAI, Anthropic or httpx client name its session in each request; all calls
  within a ``program`` block are one session, and ``carried`` takes the block into a new thread.
* ``Microserving`` makes the three calls that move K and V between nodes.

Text is generated with the clients of OpenAI and Anthropic. Importing this package changes nothing.
Uses only the routes under ``/v1/programs``, ``/v1/workflows``, ``/v1/sessions`` and
``/v1/microserving`` (docs/reference/http.md). Must not know the node, the server or the CLI.
"""

from quire.client.attachment import Attachment
from quire.client.microserving import Microserving
from quire.client.node import Client, RemoteProgram
from quire.client.programs import carried
from quire.client.requests import LaunchSettings, QuerySettings
from quire.client.tracking import program, track

__all__ = [
    "Attachment",
    "Client",
    "LaunchSettings",
    "Microserving",
    "QuerySettings",
    "RemoteProgram",
    "carried",
    "program",
    "track",
]
