"""When K and V arrive that modelled engines send each other, and who is told."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

import numpy as np
import pytest

from quire.core.batch import (
    Batch,
    BatchOperation,
    CloseReceives,
    ForwardRows,
    OpenReceive,
    SendSlots,
    no_i32,
)
from quire.core.errors import ConfigError
from quire.core.exchange import ReceiveEnded, SendEnded, SendTarget
from quire.simulation.exchange import LinkCost, VirtualNetwork

KEY, LAYERS, TOKEN_BYTES = b"k" * 16, 4, 40
COST = LinkCost(bytes_per_s=100.0, layer_s=0.0, way_s=0.5)
"""Ten tokens take 4 s, a layer of them 1 s."""


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


class Pair:
    """Engines ``a`` and ``b``, and what they were told at which time."""

    def __init__(self, cost: LinkCost = COST) -> None:
        self.told: list[tuple[float, str, SendEnded | ReceiveEnded]] = []
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._now_s = 0.0
        self.network = VirtualNetwork(cost, self._at)
        for name in ("a", "b"):
            self.network.join(name, LAYERS, TOKEN_BYTES, self._teller(name))

    def _at(self, time_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (time_s, next(self._numbers), call))

    def _teller(self, name: str) -> Callable[[SendEnded | ReceiveEnded], None]:
        return lambda ended: self.told.append((self._now_s, name, ended))

    def ran(
        self,
        name: str,
        *operations: BatchOperation,
        begin_s: float = 0.0,
        end_s: float = 0.0,
        computes: np.ndarray | None = None,
    ) -> None:
        forward = None if computes is None else _forward(computes)
        batch = Batch(serial=1, operations=list(operations), forward=forward)
        self.network.ran(name, batch, begin_s, end_s)

    def run(self) -> list[tuple[float, str, str]]:
        while self._agenda:
            self._now_s, _, call = heapq.heappop(self._agenda)
            call()
        return [(at_s, name, type(ended).__name__) for at_s, name, ended in self.told]


def _forward(slots: np.ndarray) -> ForwardRows:
    ids = np.zeros(len(slots), np.int32)
    return ForwardRows(
        row_starts=i32(0, len(slots)),
        tables=i32(0),
        sequences=i32(-1),
        tokens=ids,
        embeds=ids - 1,
        positions=ids[None, :],
        slots=slots[None, :],
        outputs=no_i32(),
    )


def opened(lease: int, num_tokens: int) -> OpenReceive:
    return OpenReceive(lease=lease, key=KEY, slots=np.arange(num_tokens, dtype=np.int32))


def sent(number: int, lease: int, slots: np.ndarray, key: bytes = KEY) -> SendSlots:
    target = SendTarget(address="b", lease=lease, key=key, first=0)
    return SendSlots(send=number, slots=slots, target=target)


TEN = np.arange(10, dtype=np.int32)


def test_what_is_there_goes_with_its_message_and_the_last_piece_completes_the_lease() -> None:
    pair = Pair()
    pair.ran("b", opened(7, 20))
    pair.ran("a", sent(1, 7, TEN), sent(2, 7, TEN + 10), begin_s=1.0, end_s=2.0)
    assert pair.run() == [
        (5.5, "a", "SendEnded"),
        (9.5, "b", "ReceiveEnded"),
        (9.5, "a", "SendEnded"),
    ]
    *_, (_, _, received), (_, _, ended) = pair.told
    assert received == ReceiveEnded(lease=7, num_tokens=20)
    assert ended == SendEnded(send=2, num_bytes=400, elapsed_s=8.5)
    assert pair.network.num_bytes == 800
    assert not pair.network.num_receiving


def test_what_is_on_the_host_does_not_wait_for_rows_that_keep_nothing() -> None:
    """Neither has a slot on the device."""
    pair = Pair()
    pair.ran("b", opened(7, 10))
    target = SendTarget(address="b", lease=7, key=KEY, first=0)
    nowhere = np.full(10, -1, np.int32)
    send = SendSlots(send=1, slots=nowhere, host_slots=TEN, target=target)
    pair.ran("a", send, end_s=40.0, computes=nowhere)
    assert pair.run() == [(4.5, "b", "ReceiveEnded"), (4.5, "a", "SendEnded")]


@pytest.mark.parametrize(
    ("compute_s", "arrived_s"),
    [
        (40.0, 41.5),  # three layers have gone while it computed: the last one goes behind it
        (2.0, 5.0),  # computing is quicker than sending: the first layer is there after 0.5 s
    ],
)
def test_layers_go_while_later_ones_are_computed(compute_s: float, arrived_s: float) -> None:
    pair = Pair()
    pair.ran("b", opened(7, 10))
    pair.ran("a", sent(1, 7, TEN), end_s=compute_s, computes=TEN)
    assert {at_s for at_s, _, _ in pair.run()} == {arrived_s}


def test_what_another_message_has_computed_does_not_wait_for_this_one() -> None:
    pair = Pair()
    pair.ran("b", opened(7, 10))
    pair.ran("a", sent(1, 7, TEN), end_s=40.0, computes=TEN + 100)
    assert {at_s for at_s, _, _ in pair.run()} == {4.5}


def test_the_links_of_both_sides_are_shared() -> None:
    pair = Pair()
    pair.network.join("c", LAYERS, TOKEN_BYTES, lambda _: None)
    pair.ran("b", opened(7, 10), opened(8, 10))
    pair.ran("a", sent(1, 7, TEN))
    pair.ran("c", sent(1, 8, TEN))
    received = [at_s for at_s, name, _ in pair.run() if name == "b"]
    assert received == [4.5, 8.5], "b receives one after the other"


def test_layers_have_a_cost_of_their_own() -> None:
    pair = Pair(LinkCost(bytes_per_s=100.0, layer_s=0.25))
    pair.ran("b", opened(7, 10))
    pair.ran("a", sent(1, 7, TEN))
    assert {at_s for at_s, _, _ in pair.run()} == {5.0}


@pytest.mark.parametrize("lease", ["closed", "unknown", "another key"])
def test_a_lease_that_takes_nothing_is_told_to_the_sender_alone(lease: str) -> None:
    pair = Pair()
    if lease != "unknown":
        pair.ran("b", opened(7, 10))
    if lease == "closed":
        pair.ran("b", CloseReceives(leases=[7]), begin_s=1.0, end_s=2.0)
    pair.ran("a", sent(1, 7, TEN, b"x" * 16 if lease == "another key" else KEY))
    assert pair.run() == [(4.5, "a", "SendEnded")]
    [(_, _, ended)] = pair.told
    assert ended.error is not None
    assert ended.error.code == "transfer_failed"
    assert pair.network.num_bytes == 0


def test_what_closes_later_than_all_has_come_closes_nothing() -> None:
    pair = Pair()
    pair.ran("b", opened(7, 10))
    pair.ran("a", sent(1, 7, TEN))
    pair.ran("b", CloseReceives(leases=[7]), begin_s=4.0, end_s=4.6)
    assert [name for _, name, _ in pair.run()] == ["b", "a"]


@pytest.mark.parametrize("wrong", [{"bytes_per_s": 0}, {"layer_s": -1}, {"way_s": float("inf")}])
def test_figures_that_make_no_link_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LinkCost(**wrong)
