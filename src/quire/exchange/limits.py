"""The bounds of a transport, in time and memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExchangeLimits:
    """``window_bytes``: of one send that the receiver has not acknowledged. They lie in the
    sockets' buffers: an engine holds one piece of a transfer. With a smaller window both sides
    sleep and wake more often, which costs a third of the speed where processors are busy.

    ``piece_bytes``: the largest piece that a receiver takes. ``silence_s``: a peer that makes no
    progress for this time has failed. ``greeting_s``: to connect and to agree on a lease;
    ``opening_s`` of it may a sender wait for a lease that its receiver has not opened yet.
    ``num_sends`` at a time, others wait; ``num_connections`` at a time from other engines, others
    are refused. ``shares_memory``: pieces go to engines of this machine through memory, not through
    the socket, a window at a time.
    """

    window_bytes: int = 16 << 20
    piece_bytes: int = 16 << 20
    silence_s: float = 10.0
    greeting_s: float = 5.0
    opening_s: float = 4.0
    num_sends: int = 8
    num_connections: int = 64
    shares_memory: bool = True
