"""K and V between an engine of one rank and one of two."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_checkpoints import MODELS
from exchange_peer import PATIENCE_S, PROMPT, Peer
from parallel_engines import tiny

from quire.core.config import EngineConfig
from quire.core.errors import EngineFault
from quire.core.exchange import ReceiveEnded, SendEnded
from quire.core.kv_transport import KVTransport
from quire.engine.engine import Engine
from quire.engine.parallel.channel import RankChannel
from quire.engine.parallel.group import Follower, RankGroup
from quire.engine.parallel.messages import PlaceTokens, token_answer_codec, token_call_codec
from quire.engine.parallel.token_service import TokenService
from quire.exchange import InProcessExchange, TcpTransport

MakePeer = Callable[..., Peer]


@pytest.fixture
def make_peer(checkpoint: Callable[[str], Path], ranks: RankGroup) -> Iterator[MakePeer]:
    """Makes engines of two ranks, or of ``tensor_parallel=1``."""
    exchange = InProcessExchange()
    with ExitStack() as made:

        def make(name: str, transport: KVTransport | None = None, **changes: Any) -> Peer:
            settings = {**MODELS[name].engine, "num_blocks": 128, "max_batch_tokens": 64, **changes}
            config: EngineConfig = tiny(str(checkpoint(name)), **settings)
            group = ranks if config.tensor_parallel > 1 else None
            engine = Engine(config, ranks=group, transport=transport or exchange.join())
            return Peer(made.enter_context(closing(engine)))

        yield make


ONE = {"tensor_parallel": 1, "backend": "torch"}


@pytest.mark.parametrize("name", ["llama", "llama-mqa-head-dim", "gemma3"])
def test_what_two_ranks_received_is_what_one_had(make_peer: MakePeer, name: str) -> None:
    """Each rank has its heads, and both have the head of a model with one: bit for bit there and
    back, and with the answers of who computed it."""
    one, two = make_peer(name, **ONE), make_peer(name, page_size=16)
    back = make_peer(name, **ONE)
    assert one.info.content == two.info.content
    assert one.info.layout != two.info.layout
    one.prompt(range(len(PROMPT)))
    one.move(two)
    np.testing.assert_allclose(two.go_on(), one.go_on(), atol=1e-4)
    two.move(back)
    assert np.array_equal(back.go_on(), one.go_on())


def test_what_two_ranks_compute_is_sent_by_the_same_message(make_peer: MakePeer) -> None:
    """Over TCP, whose thread reads the other rank's pool beside its forward."""
    tcp = [TcpTransport(), TcpTransport()]
    two = make_peer("llama", tcp[0])
    one = make_peer("llama", tcp[1], **ONE)
    tokens = range(len(PROMPT))
    one.good(operations=[one.open_receive(tokens)])
    two.prompt(tokens, two.send_to(one, tokens))
    received, sent = one.report(), two.report()
    assert isinstance(received, ReceiveEnded)
    assert isinstance(sent, SendEnded)
    assert (received.error, sent.error) == (None, None)
    np.testing.assert_allclose(one.go_on(), two.go_on(), atol=1e-4)


def test_what_two_ranks_have_on_the_host_is_sent_from_there(make_peer: MakePeer) -> None:
    two, one = make_peer("llama", page_size=16), make_peer("llama", **ONE)
    tokens = range(len(PROMPT))
    two.prompt(tokens)
    expected = two.go_on()
    two.swap_out()
    one.good(operations=[one.open_receive(tokens)])
    two.good(operations=[two.send_from_host(one)])
    for report in one.report(), two.report():
        assert isinstance(report, ReceiveEnded | SendEnded)
        assert report.error is None
    np.testing.assert_allclose(one.go_on(), expected, atol=1e-4)


class NotedPool:
    """The tokens that it was asked to place."""

    def __init__(self) -> None:
        self.placed = threading.Event()

    def place(self, slots: object, positions: object) -> None:
        self.placed.set()


def test_a_rank_touches_its_pool_when_the_calls_before_have_run() -> None:
    ours, theirs = socket.socketpair()
    pool: Any = NotedPool()
    channel, far_end = RankChannel(ours), RankChannel(theirs)
    service = TokenService(far_end, lambda: pool)
    service.start()
    nothing = np.empty(0, np.int64)
    call = PlaceTokens(num_calls=2, slots=nothing, positions=nothing.astype(np.int32))
    channel.send(token_call_codec().encode(call))
    service.call_ended()
    assert not pool.placed.wait(0.05), "a call before it has not run"
    service.call_ended()
    assert pool.placed.wait(PATIENCE_S)
    assert len(token_answer_codec().decode(channel.receive()).tokens) == 0
    channel.close()
    far_end.close()


def test_a_rank_that_ends_is_named_to_who_asks_for_its_tokens() -> None:
    group = RankGroup(2, torch.device("cpu"))
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    calls, tokens = (RankChannel(_half_closed()) for _ in range(2))
    group._followers.append(Follower(1, process, calls, tokens))
    nothing = np.empty(0, np.int64)
    call = PlaceTokens(num_calls=0, slots=nothing, positions=nothing.astype(np.int32))
    process.wait()
    with pytest.raises(EngineFault, match=r"rank 1 \(pid \d+\) exited with 3"):
        group.ask_tokens([call], lambda: None)
    group.close()


def _half_closed() -> socket.socket:
    """A socket whose peer is gone."""
    ours, theirs = socket.socketpair()
    theirs.close()
    return ours
