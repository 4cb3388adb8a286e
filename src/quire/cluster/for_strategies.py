"""The names that a strategy needs: they are those of the package ``quire.cluster``, too."""

from quire.cluster.engines.interfaces import Engine, PrepRecvResult, RemoteSendResult, Route
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import Request

__all__ = ["Engine", "PrepRecvResult", "RemoteSendResult", "Request", "Route", "RoutedAnswer"]
