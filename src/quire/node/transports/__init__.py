"""Transports between the control thread and an engine: in this process, or in its own (ZeroMQ)."""

from quire.node.transports.in_process import InProcessTransport
from quire.node.transports.zeromq import ZeroMQTransport

__all__ = ["InProcessTransport", "ZeroMQTransport"]
