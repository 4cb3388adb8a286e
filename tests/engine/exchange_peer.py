"""An engine that exchanges K and V with others in a test."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from engine_checkpoints import VOCAB_SIZE
from engine_driver import Driver, Row, i32
from numpy.typing import NDArray

from quire.core.batch import OpenReceive, SendSlots, SwapOut
from quire.core.batch_result import EngineReport
from quire.core.exchange import ReceiveEnded, SendEnded, SendTarget
from quire.engine.engine import Engine

PATIENCE_S = 60.0
KEY = b"0123456789abcdef"
PROMPT = np.random.default_rng(5).integers(3, VOCAB_SIZE, 41).tolist()
NEXT = [17, 4, 9]


class Peer(Driver):
    """An engine that exchanges, and its blocks of table 0."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()
        engine.wake_by(lambda: self._rings.put(None))
        order = np.random.default_rng(self.page_size).permutation(self.num_pages(64))
        self.blocks = order.tolist()

    def slots(self, tokens: Sequence[int]) -> list[int]:
        return self.flat(self.blocks, tokens)

    def swap_out(self, num_tokens: int = len(PROMPT)) -> None:
        """Copy the pages of table 0 to the host, and then write something else to them here."""
        count = self.num_pages(num_tokens)
        blocks, host_blocks = self.blocks[:count], [count - index for index in range(count)]
        transfers = i32(range(count))
        self.good(
            operations=[
                SwapOut(transfers=transfers, blocks=i32(blocks), host_blocks=i32(host_blocks))
            ]
        )
        self.end_transfers()
        tokens = range(num_tokens)
        row = Row([8] * num_tokens, -1, [100 + i for i in tokens], self.slots(tokens))
        self.logprobs([row])

    def host_slots(self, tokens: Sequence[int], count: int) -> list[int]:
        """Where ``swap_out`` has put these tokens, of ``count`` pages."""
        size = self.page_size
        return [(count - token // size) * size + token % size for token in tokens]

    def send_from_host(self, other: Peer) -> SendSlots:
        """Send the prompt, all of which is there."""
        sent, tokens = self.send_to(other, range(len(PROMPT))), range(len(PROMPT))
        host_slots = self.host_slots(tokens, self.num_pages(len(PROMPT)))
        return msgspec.structs.replace(
            sent, slots=i32([-1] * len(PROMPT)), host_slots=i32(host_slots)
        )

    def report(self) -> EngineReport:
        """The engine's next report; waits for it."""
        while (report := self.engine.transfer()) is None:
            self._rings.get(timeout=PATIENCE_S)
        return report

    def has_report(self) -> bool:
        return self.engine.transfer() is not None

    def open_receive(self, tokens: Sequence[int], lease: int = 1) -> OpenReceive:
        return OpenReceive(lease=lease, key=KEY, slots=i32(self.slots(tokens)))

    def send_to(
        self, other: Peer, tokens: Sequence[int], *, first: int = 0, **to: Any
    ) -> SendSlots:
        settings = {"address": other.info.data_address, "lease": 1, "key": KEY, "first": first}
        target = SendTarget(**{**settings, **to})
        return SendSlots(send=9, slots=i32(self.slots(tokens)), target=target)

    def prompt(self, tokens: Sequence[int], *operations: Any) -> NDArray[np.float64]:
        """Run ``PROMPT[tokens]`` behind what is there; log probabilities after each."""
        table = self.write_table(0, self.blocks, range(tokens[0]))
        row = Row([PROMPT[i] for i in tokens], 0, tokens, self.slots(tokens))
        return self.logprobs([row], [table, *operations])

    def go_on(self, num_tokens: int = len(PROMPT)) -> NDArray[np.float64]:
        """Log probabilities after ``NEXT`` behind the first tokens of the prompt."""
        table = self.write_table(0, self.blocks, range(num_tokens))
        positions = range(num_tokens, num_tokens + len(NEXT))
        return self.logprobs([Row(NEXT, 0, positions)], [table])

    def move(self, other: Peer, tokens: Sequence[int] = range(len(PROMPT))) -> None:
        """Send these tokens of table 0 to the same ones of ``other``."""
        other.good(operations=[other.open_receive(tokens)])
        self.good(operations=[self.send_to(other, tokens)])
        received, sent = other.report(), self.report()
        assert isinstance(received, ReceiveEnded)
        assert isinstance(sent, SendEnded)
        assert (received.error, sent.error) == (None, None)
        assert received.num_bytes == sent.num_bytes > 0
        assert (received.lease, received.num_tokens, sent.send) == (1, len(tokens), 9)
