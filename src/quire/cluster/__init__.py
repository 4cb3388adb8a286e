"""A router above nodes: places requests by a strategy that can be exchanged while it runs.

It is a client of nodes: it speaks their HTTP and knows nothing of their inside. It uses the edge
that it shares with them: listener, limits, keys, errors.
"""

from quire.cluster.engines.interfaces import Engine, Received, Route, Sent
from quire.cluster.requests.answer import Answer
from quire.cluster.requests.request import Request

__all__ = ["Answer", "Engine", "Received", "Request", "Route", "Sent"]
