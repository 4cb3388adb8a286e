"""Ways from the control thread to an engine: in this process, or in one of its own (ZeroMQ)."""

from quire.node.transports.in_process import InProcessTransport
from quire.node.transports.zeromq import ZeroMQTransport

__all__ = ["InProcessTransport", "ZeroMQTransport"]
