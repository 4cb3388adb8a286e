"""The data plane of fake engines: they exchange slots in memory, also those of several controllers.

Owns what each engine accepts and what it still has to send. Everything is delivered when
``deliver`` is called, as late as possible, so that a change in the meantime that the batch
contract forbids shows; ``FakeMemory`` refuses messages that use slots which are under way.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quire.core.batch import I32, U64, CloseReceives, OpenReceive, SendSlots
from quire.core.errors import EngineLost, ErrorRecord, InvalidArgument
from quire.core.exchange import ReceiveEnded, SendEnded
from quire.core.kv_transport import Carrier
from quire.testing.fake_engine.memory import FakeMemory, Slots
from quire.testing.fake_engine.violations import require

BYTES_PER_TOKEN = 64
CARRIER: Carrier = "in_process"


@dataclass(slots=True)
class _Receiving:
    """A lease that receives. ``missing``: the indices of tokens that have not arrived."""

    key: bytes
    slots: I32
    missing: set[int]


@dataclass(slots=True)
class _Piece:
    """One piece on its way: one token each of ``values`` [layers, T], ``positions`` and ``tokens``,
    from index ``first`` of the lease on."""

    values: U64
    positions: I32
    tokens: I32
    first: int


class FakeNetwork:
    """Engines by address. Give one to every engine that is to exchange slots with the others.

    ``seed``: sends are delivered in random order and in pieces; None: in order and whole.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.exchanges: dict[str, FakeExchange] = {}
        self.random = None if seed is None else random.Random(seed)
        self.is_cut = False
        self._num_joined = 0

    def join(self, memory: FakeMemory) -> FakeExchange:
        self._num_joined += 1  # the address of an engine that was lost is nobody's from then on
        exchange = FakeExchange(self, f"fake://{self._num_joined}", memory)
        self.exchanges[exchange.address] = exchange
        return exchange


class FakeExchange:
    """One engine's part of the network. ``is_slow``: it delivers only when a test calls
    ``deliver``. ``newest``: the last lease that was opened; a send to a later one waits for it."""

    def __init__(self, network: FakeNetwork, address: str, memory: FakeMemory) -> None:
        self.address = address
        self.is_slow = False
        self.newest = 0
        self._network = network
        self._memory = memory
        self._receiving: dict[int, _Receiving] = {}
        self._sends: dict[int, SendSlots] = {}
        self._reports: deque[SendEnded | ReceiveEnded] = deque()
        self._ring: Callable[[], None] = lambda: None

    @property
    def is_busy(self) -> bool:
        """Whether ``next_report`` would have something to do or to report."""
        return bool(self._reports) or bool(not self.is_slow and self._deliverable())

    def wake_by(self, ring: Callable[[], None]) -> None:
        self._ring = ring

    def ring(self) -> None:
        """Have the engine ask for its next report."""
        self._ring()

    def leave(self) -> None:
        """Leave the network, as the engine is lost."""
        self._network.exchanges.pop(self.address, None)
        self._sends.clear()
        self._reports.clear()

    # -- operations --------------------------------------------------------------------------------

    def open(self, op: OpenReceive) -> None:
        require(op.lease not in self._receiving, f"lease {op.lease} is open already")
        require(len(np.unique(op.slots)) == len(op.slots), f"lease {op.lease} names a slot twice")
        self._memory.check_slots(op.slots, f"lease {op.lease}")
        self.newest = max(self.newest, op.lease)
        self._receiving[op.lease] = _Receiving(op.key, op.slots, set(range(len(op.slots))))
        self._memory.receiving[op.lease] = frozenset(self._blocks(op.slots))
        for exchange in self._network.exchanges.values():  # a send may have waited for it
            if exchange.is_busy:
                exchange.ring()

    def close(self, op: CloseReceives) -> None:
        for lease in op.leases:
            self._receiving.pop(lease, None)
            self._memory.receiving.pop(lease, None)

    def send(self, op: SendSlots) -> None:
        require(op.send not in self._sends, f"send {op.send} is under way already")
        require(
            len(op.host_slots) in (0, len(op.slots)), f"send {op.send}: columns differ in length"
        )
        require(
            bool((_places(op) >= 0).all()), f"send {op.send}: a token is on no tier, or on both"
        )
        self._sends[op.send] = op
        self._memory.begin_send(op.send, op.slots, op.host_slots)

    def _blocks(self, slots: I32) -> list[int]:
        blocks: list[int] = np.unique(slots // self._memory.page_size).tolist()
        return blocks

    # -- delivery ----------------------------------------------------------------------------------

    def next_report(self) -> SendEnded | ReceiveEnded | None:
        """Return the next report; if there is none, deliver a send first."""
        if not self._reports and not self.is_slow:
            self.deliver()
        return self._reports.popleft() if self._reports else None

    def deliver(self) -> bool:
        """Deliver the send that has waited longest, or a random one; False if none can go."""
        sends = self._deliverable()
        if not sends:
            return False
        chance = self._network.random
        number = chance.choice(sends) if chance else sends[0]
        op = self._sends.pop(number)
        error = self._deliver(op, self._memory.end_send(number, op.slots, op.host_slots))
        num_bytes = 0 if error else len(op.slots) * BYTES_PER_TOKEN
        self._reports.append(
            SendEnded(send=number, error=error, num_bytes=num_bytes, transport=CARRIER)
        )
        return True

    def _deliverable(self) -> list[int]:
        """The sends whose leases are not to come any more."""
        at = self._network.exchanges
        return [
            number
            for number, op in self._sends.items()
            if (receiver := at.get(op.target.address)) is None or op.target.lease <= receiver.newest
        ]

    def _deliver(self, op: SendSlots, sent: Slots) -> ErrorRecord | None:
        target = op.target
        receiver = self._network.exchanges.get(target.address)
        if receiver is None or self._network.is_cut:
            return EngineLost(f"no engine answers at {target.address}: try another").record()
        for first, last in self._pieces(len(op.slots)):
            piece = _Piece(
                sent.values[:, first:last],
                sent.positions[first:last],
                sent.tokens[first:last],
                target.first + first,
            )
            error = receiver.accept(target.lease, target.key, piece)
            if error is not None:
                return error
        return None

    def _pieces(self, num_tokens: int) -> list[tuple[int, int]]:
        chance = self._network.random
        if chance is None or num_tokens < 2:
            return [(0, num_tokens)]
        cut = chance.randint(1, num_tokens - 1)
        pieces = [(0, cut), (cut, num_tokens)]
        chance.shuffle(pieces)
        return pieces

    def accept(self, lease: int, key: bytes, piece: _Piece) -> ErrorRecord | None:
        """Write a piece that another engine sends; return the reason if it is refused."""
        receiving = self._receiving.get(lease)
        if receiving is None or receiving.key != key:
            return InvalidArgument(f"lease {lease} is not open: open a new one").record()
        indices = range(piece.first, piece.first + len(piece.positions))
        if not receiving.missing.issuperset(indices):
            return InvalidArgument(
                f"tokens {indices.start} to {indices.stop} are not all among those that lease "
                f"{lease} waits for: send each once"
            ).record()
        slots = receiving.slots[indices.start : indices.stop]
        self._memory.slots.values[:, slots] = piece.values
        self._memory.slots.positions[slots] = piece.positions
        self._memory.slots.tokens[slots] = piece.tokens
        receiving.missing.difference_update(indices)
        if not receiving.missing:
            del self._receiving[lease]
            del self._memory.receiving[lease]
            count = len(receiving.slots)
            num_bytes = count * BYTES_PER_TOKEN
            self._reports.append(
                ReceiveEnded(lease=lease, num_tokens=count, num_bytes=num_bytes, transport=CARRIER)
            )
            self._ring()
        return None


def _places(op: SendSlots) -> I32:
    """The flat slot of each token, on whichever tier it is; -1: on none, or on both."""
    if not len(op.host_slots):
        return op.slots
    is_one = (op.slots < 0) != (op.host_slots < 0)
    return np.where(is_one, np.maximum(op.slots, op.host_slots), -1)
