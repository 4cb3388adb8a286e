"""K and V between modelled engines: the time at which tokens that one sends have arrived.

Owns the links, and which leases wait for how much. Engines are notified as real data planes notify
them, by ``SendEnded`` and ``ReceiveEnded``; control decides all the rest. A send of tokens that its
message computes goes layer by layer behind the forward, the last layer after the message
(docs/decisions/105-layers-ahead.md); tokens that exist already are sent at once, with the message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import isfinite

from quire.core.batch import Batch, CloseReceives, OpenReceive, SendSlots
from quire.core.errors import ConfigError, TransferFailed
from quire.core.exchange import ReceiveEnded, SendEnded

At = Callable[[float, Callable[[], None]], None]
"""Registers a function to be called at a virtual time."""


@dataclass(frozen=True, slots=True)
class LinkCost:
    """The cost of a link. ``bytes_per_s``: the most that an engine sends, and that it receives;
    ``layer_s``: the time of each layer of a send, besides its bytes; ``way_s``: the time from one
    engine to another.

    Raises:
        ConfigError: a figure that no link can have.
    """

    bytes_per_s: float = 10e9
    layer_s: float = 0.0
    way_s: float = 0.0

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            if not (isfinite(value) and value >= 0):
                raise ConfigError(f"link {part.name} is {value}: choose a finite number, 0 or more")
        if not self.bytes_per_s:
            raise ConfigError("link bytes_per_s is 0: choose more")


@dataclass(slots=True)
class _Port:
    """One engine. ``sends_s`` and ``receives_s``: the times until which its link is in use in each
    direction."""

    num_layers: int
    token_bytes: int
    tell: Callable[[SendEnded | ReceiveEnded], None]
    sends_s: float = 0.0
    receives_s: float = 0.0


@dataclass(slots=True)
class _Receiving:
    key: bytes
    num_missing: int
    num_tokens: int


class VirtualNetwork:
    """The engines of one simulation by their data addresses. ``num_bytes``: sent so far."""

    def __init__(self, cost: LinkCost, at: At) -> None:
        self._cost = cost
        self._at = at
        self._ports: dict[str, _Port] = {}
        self._receiving: dict[tuple[str, int], _Receiving] = {}
        self.num_bytes = 0

    def join(
        self,
        address: str,
        num_layers: int,
        token_bytes: int,
        tell: Callable[[SendEnded | ReceiveEnded], None],
    ) -> None:
        """Add the engine at ``address``; ``tell`` is called with its reports."""
        self._ports[address] = _Port(num_layers, token_bytes, tell)

    @property
    def num_receiving(self) -> int:
        """The number of leases that wait for tokens."""
        return len(self._receiving)

    def ran(self, address: str, batch: Batch, begin_s: float, end_s: float) -> None:
        """Note that the engine at ``address`` runs ``batch`` in this time."""
        for operation in batch.operations:
            if isinstance(operation, OpenReceive):
                num_tokens = len(operation.slots)
                self._receiving[address, operation.lease] = _Receiving(
                    operation.key, num_tokens, num_tokens
                )
            elif isinstance(operation, CloseReceives):
                for lease in operation.leases:
                    self._at(end_s, lambda lease=lease: self._close(address, lease))  # type: ignore[misc]
            elif isinstance(operation, SendSlots):
                self._send(address, operation, batch, begin_s, end_s)

    def _close(self, address: str, lease: int) -> None:
        self._receiving.pop((address, lease), None)

    def _send(
        self, address: str, send: SendSlots, batch: Batch, begin_s: float, end_s: float
    ) -> None:
        sender, receiver = self._ports[address], self._ports[send.target.address]
        layer_s = self._cost.layer_s
        layer_s += len(send.slots) * sender.token_bytes / sender.num_layers / self._cost.bytes_per_s
        whole_s = layer_s * sender.num_layers
        taken_s = max(begin_s, sender.sends_s, receiver.receives_s) + whole_s
        if _is_computed_by(batch, send):
            first_s = (end_s - begin_s) / sender.num_layers
            done_s = max(taken_s, begin_s + first_s + whole_s, end_s + layer_s)
        else:
            done_s = taken_s
        sender.sends_s = receiver.receives_s = taken_s
        arrived_s = done_s + self._cost.way_s
        self._at(arrived_s, lambda: self._arrived(sender, send, arrived_s - begin_s))

    def _arrived(self, sender: _Port, send: SendSlots, elapsed_s: float) -> None:
        """Note that all of ``send`` has arrived: the receiver gets a report when its lease is
        complete, the sender one for each send."""
        target = send.target
        receiving = self._receiving.get((target.address, target.lease))
        if receiving is None or receiving.key != target.key:
            error = TransferFailed(
                f"lease {target.lease} at {target.address} takes nothing more: it has ended"
            )
            sender.tell(SendEnded(send=send.send, error=error.record()))
            return
        num_tokens = len(send.slots)
        num_bytes = num_tokens * sender.token_bytes
        self.num_bytes += num_bytes
        receiving.num_missing -= num_tokens
        if receiving.num_missing <= 0:
            self._close(target.address, target.lease)
            self._ports[target.address].tell(
                ReceiveEnded(lease=target.lease, num_tokens=receiving.num_tokens)
            )
        sender.tell(SendEnded(send=send.send, num_bytes=num_bytes, elapsed_s=elapsed_s))


def _is_computed_by(batch: Batch, send: SendSlots) -> bool:
    """Whether the message itself computes the tokens of ``send``: the last token decides. One on
    the host existed before."""
    forward, last = batch.forward, send.slots[-1]
    if forward is None or last < 0:
        return False
    return bool((forward.slots[send.group] == last).any())
