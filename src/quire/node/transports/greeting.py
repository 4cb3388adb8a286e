"""The node's side of the handshake with a process that it has started."""

from __future__ import annotations

import secrets

from quire import __version__
from quire.core.errors import ProtocolMismatch
from quire.core.wire import PROTOCOL_VERSION
from quire.node.transports.messages import Hello, Welcome


def greet(hello: Hello, token: str, who: str) -> Welcome:
    """The answer to ``hello`` from ``who`` ("engine m"), whose launch order had ``token``.

    Raises:
        ProtocolMismatch: another process, or one of another release.
    """
    if not secrets.compare_digest(hello.token, token):
        raise ProtocolMismatch(
            f"process {hello.pid} said Hello as the {who} without the token of this node: it was "
            "not started by it"
        )
    if (hello.version, hello.release) != (PROTOCOL_VERSION, __version__):
        raise ProtocolMismatch(
            f"the {who} runs quire {hello.release} (protocol {hello.version}), this node "
            f"{__version__} (protocol {PROTOCOL_VERSION}): restart the node after an upgrade"
        )
    return Welcome(version=PROTOCOL_VERSION, release=__version__)
