"""Transports of K and V between engines. They know neither pools nor control."""

from quire.exchange.in_process import InProcessExchange
from quire.exchange.limits import ExchangeLimits
from quire.exchange.tcp import TcpTransport

__all__ = ["ExchangeLimits", "InProcessExchange", "TcpTransport"]
