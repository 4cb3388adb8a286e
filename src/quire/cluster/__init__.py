"""A router above nodes: places requests by a strategy that can be exchanged while it runs.

It is a client of nodes: it speaks their HTTP and knows nothing of their inside. It uses the edge
that it shares with them: listener, limits, keys, errors.
"""

from quire.cluster.engines.interfaces import Engine, PrepRecvResult, RemoteSendResult, Route
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import Request

__all__ = ["Engine", "PrepRecvResult", "RemoteSendResult", "Request", "Route", "RoutedAnswer"]
