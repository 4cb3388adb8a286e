"""Messages of engines and control about K and V that move between engines.

The operations that begin and end an exchange are those of a batch message (``quire.core.batch``).
"""

from __future__ import annotations

import msgspec

from quire.core.errors import ErrorRecord

KEY_BYTES = 16
"""The length of a lease's key."""

CLUSTER_KEY_HEADER = "x-quire-cluster-key"
"""The header of an HTTP request in which nodes and routers of a cluster show its key."""


class SendTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The destination of sent tokens: index ``first`` and the following ones of ``lease``, at the
    engine whose ``EngineInfo.data_address`` is ``address``. ``key``: the secret with which the
    lease was opened."""

    address: str
    lease: int
    key: bytes
    first: int


class SendEnded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A ``SendSlots`` has ended. Without ``error`` the receiver has written and verified
    everything that was sent. ``num_bytes``: of what the receiver has written; ``transport``: what
    has carried it (see ``kv_transport.carried_by``)."""

    send: int
    error: ErrorRecord | None = None
    num_bytes: int = 0
    elapsed_s: float = 0.0
    transport: str = ""


class ReceiveEnded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Every token of a lease has arrived and is verified, or the lease is useless (``error``).
    Nothing more is written under it. ``num_bytes`` were written; ``transport``: what has carried
    them."""

    lease: int
    error: ErrorRecord | None = None
    num_tokens: int = 0
    num_bytes: int = 0
    transport: str = ""
