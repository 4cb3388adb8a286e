"""A router above nodes: places requests by a strategy that can be exchanged while it runs.

It is a client of nodes: it speaks their HTTP and knows nothing of their inside. It uses the edge
that it shares with them: listener, limits, keys, errors.

A strategy needs the names of ``quire.cluster.for_strategies``, which this package has too. They are
imported when the first of them is used: the deployment of a cluster (``quire status``) needs none
of them, and the edge behind them would be most of its start.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.cluster.for_strategies import (
        Engine,
        PrepRecvResult,
        RemoteSendResult,
        Request,
        Route,
        RoutedAnswer,
    )

__all__ = ["Engine", "PrepRecvResult", "RemoteSendResult", "Request", "Route", "RoutedAnswer"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module("quire.cluster.for_strategies"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
