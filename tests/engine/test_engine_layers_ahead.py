"""A message's sends follow its forward layer by layer, and nothing is complete before its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from engine_driver import Row, forward_rows
from test_engine_exchange import (  # noqa: F401 - fixtures
    PROMPT,
    MakePeer,
    Peer,
    exchange,
    make_peer,
    needs_kernel,
)

from quire.core.errors import EngineFault, TransferFailed
from quire.core.exchange import ReceiveEnded, SendEnded
from quire.engine.cpu.native_progress import NativeProgress
from quire.engine.exchange.layer_progress import ForwardGate, LayerProgress, ThreadProgress
from quire.engine.exchange.pool_sink import PoolSink
from quire.exchange import TcpTransport

PATIENCE_S = 60.0
TOKENS = range(len(PROMPT))


class Arrivals:
    """Which layers have come to an engine."""

    def __init__(self, peer: Peer) -> None:
        self._changed = threading.Condition()
        self.layers: list[int] = []
        self._engine: Any = peer.engine

    def watch(self) -> None:
        (sink,) = self._engine._exchange._sinks.values()
        assert isinstance(sink, PoolSink)
        write = sink.write

        def noted(piece: Any, *more: Any) -> None:
            write(piece, *more)
            with self._changed:
                self.layers += range(piece.first_layer, piece.first_layer + piece.num_layers)
                self._changed.notify_all()

        sink.write = noted  # type: ignore[method-assign]

    def wait(self, layer: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: layer in self.layers, PATIENCE_S)


def before_layer(peer: Peer, number: int, do: Callable[[], None]) -> None:
    """``do`` runs before layer ``number`` of each forward of a torch engine."""
    engine: Any = peer.engine
    layers = engine._step._runner._model.layers
    layer = layers[number]

    def after_that(*arguments: Any) -> Any:
        do()
        return layer(*arguments)

    layers[number] = after_that


def compute_and_send(sender: Peer, receiver: Peer) -> None:
    table = sender.write_table(0, sender.blocks, ())
    row = Row(PROMPT, 0, TOKENS, sender.slots(TOKENS))
    sender.good(
        forward=forward_rows([row], outputs=False),
        operations=[table, sender.send_to(receiver, TOKENS)],
    )


@pytest.mark.parametrize("over", ["process", "tcp"])
def test_a_layer_arrives_before_the_next_one_is_computed(
    make_peer: MakePeer,  # noqa: F811
    over: str,
) -> None:
    """The forward itself waits for the arrival: sends that began after it would never end it."""
    transport = (lambda: TcpTransport("tcp://127.0.0.1:0")) if over == "tcp" else (lambda: None)
    sender, receiver = make_peer(transport=transport()), make_peer(transport=transport())
    arrivals, came = Arrivals(receiver), []
    receiver.good(operations=[receiver.open_receive(TOKENS)])
    arrivals.watch()
    num_layers = sender.info.num_layers
    for layer in range(1, num_layers):
        before_layer(sender, layer, lambda layer=layer: came.append(arrivals.wait(layer - 1)))  # type: ignore[misc]
    compute_and_send(sender, receiver)
    assert came == [True] * (num_layers - 1)
    assert isinstance(receiver.report(), ReceiveEnded)
    assert arrivals.layers == list(range(num_layers))
    sent = sender.report()
    assert isinstance(sent, SendEnded)
    assert sent.error is None
    assert np.array_equal(receiver.go_on(), sender.go_on())


@needs_kernel
def test_what_was_sent_ahead_is_what_was_computed(make_peer: MakePeer) -> None:  # noqa: F811
    sender, receiver, after = (make_peer(backend="cpu") for _ in range(3))
    receiver.good(operations=[receiver.open_receive(TOKENS)])
    compute_and_send(sender, receiver)
    received, sent = receiver.report(), sender.report()
    assert isinstance(received, ReceiveEnded)
    assert isinstance(sent, SendEnded)
    assert (received.error, sent.error) == (None, None)
    assert np.array_equal(receiver.go_on(), sender.go_on())
    sender.move(after)
    assert np.array_equal(after.go_on(), receiver.go_on())


def test_a_fault_between_two_layers_leaves_nothing_complete(
    make_peer: MakePeer,  # noqa: F811
) -> None:
    sender, receiver = make_peer(), make_peer()
    arrivals = Arrivals(receiver)
    receiver.good(operations=[receiver.open_receive(TOKENS)])
    arrivals.watch()

    def fail() -> None:
        assert arrivals.wait(0)
        raise RuntimeError("the device is on fire")

    before_layer(sender, 1, fail)
    with pytest.raises(EngineFault, match="on fire"):
        compute_and_send(sender, receiver)
    assert sender.info.num_layers - 1 not in arrivals.layers
    assert not receiver.has_report(), "the lease is not complete"


def test_a_row_that_is_left_out_is_not_sent(make_peer: MakePeer) -> None:  # noqa: F811
    sender, receiver = make_peer(), make_peer()
    receiver.good(operations=[receiver.open_receive(TOKENS)])
    table = sender.write_table(0, sender.blocks, ())
    row = Row([10**6, *PROMPT[1:]], 0, TOKENS, sender.slots(TOKENS))
    result = sender.send(
        forward=forward_rows([row], outputs=False),
        operations=[table, sender.send_to(receiver, TOKENS)],
    )
    assert [failure.stage for failure in result.failures] == ["forward"]
    sent = sender.report()
    assert isinstance(sent, SendEnded)
    assert sent.error is not None
    assert sent.error.code == "transfer_failed"
    assert not receiver.has_report()


def test_what_was_there_before_is_sent_at_once(make_peer: MakePeer) -> None:  # noqa: F811
    """While another prompt is computed in the same message."""
    sender, receiver = make_peer(), make_peer()
    sender.prompt(TOKENS)
    arrivals, came = Arrivals(receiver), []
    receiver.good(operations=[receiver.open_receive(TOKENS)])
    arrivals.watch()
    before_layer(sender, 0, lambda: came.append(arrivals.wait(sender.info.num_layers - 1)))
    other = sender.write_table(1, sender.blocks[3:], ())
    row = Row([5, 6], 1, range(2), sender.flat(sender.blocks[3:], range(2)))
    sender.good(
        forward=forward_rows([row], outputs=False),
        operations=[other, sender.send_to(receiver, TOKENS)],
    )
    assert came == [True]


@needs_kernel
def test_the_kernel_counts_its_layers(make_peer: MakePeer) -> None:  # noqa: F811
    peer = make_peer(backend="cpu")
    engine: Any = peer.engine
    runner = engine._step._runner
    progress = runner.new_progress()
    assert isinstance(progress, NativeProgress)
    runner.watch(progress, 100)
    peer.prompt(TOKENS)
    progress.wait(100 + peer.info.num_layers)  # returns: nobody else counts
    late = threading.Thread(target=progress.wait, args=(101 + peer.info.num_layers,), daemon=True)
    late.start()
    runner.watch(None, 0)
    peer.prompt(TOKENS)
    assert late.is_alive(), "not counted twice, nor when nobody watches"
    progress.reach(101 + peer.info.num_layers)
    late.join(PATIENCE_S)
    assert not late.is_alive()


@pytest.mark.parametrize("has_failed", [False, True])
def test_the_last_layer_waits_for_the_end_of_the_message(has_failed: bool) -> None:
    progress: LayerProgress = ThreadProgress()
    gate = ForwardGate(progress, 10, 3)
    progress.reach(13)
    gate.wait(2)
    ends: list[str] = []

    def last() -> None:
        try:
            gate.wait(3)
            ends.append("sent")
        except TransferFailed:
            ends.append("failed")

    thread = threading.Thread(target=last, daemon=True)
    thread.start()
    assert not ends
    gate.end(has_failed=has_failed)
    gate.end(has_failed=not has_failed)
    thread.join(PATIENCE_S)
    assert ends == ["failed" if has_failed else "sent"]
    assert gate.next_base == 14
