"""K and V between real engines: what arrives, when it ends, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_checkpoints import MODELS
from engine_driver import Driver, i32
from exchange_peer import KEY, PATIENCE_S, PROMPT, Peer

from quire.core.batch import CloseReceives, OpenReceive, SendSlots
from quire.core.batch_result import EngineReport
from quire.core.config import EngineConfig
from quire.core.errors import EngineFault, ModelNotFound
from quire.core.exchange import ReceiveEnded, SendEnded, SendTarget
from quire.core.ids import ModelId
from quire.core.kv_transport import KVTransport
from quire.engine.cpu.library import kernel_report
from quire.engine.engine import Engine
from quire.engine.exchange.pieces import PIECE_BYTES, PieceForm
from quire.engine.kv_cache.token_form import TokenForm
from quire.exchange import InProcessExchange, TcpTransport

MakeDriver = Callable[..., Driver]
MakePeer = Callable[..., Peer]

needs_kernel = pytest.mark.skipif(
    kernel_report().chosen is None, reason="the CPU kernel cannot run here"
)


@pytest.fixture
def exchange() -> InProcessExchange:
    return InProcessExchange()


@pytest.fixture
def make_peer(checkpoint: Callable[[str], Path], exchange: InProcessExchange) -> Iterator[MakePeer]:
    made: list[Engine] = []

    def make(name: str = "llama", transport: KVTransport | None = None, **changes: object) -> Peer:
        settings: dict[str, Any] = {
            "dtype": "float32",
            "page_size": 16,
            "num_blocks": 128,
            "host_cache_bytes": 0,
            "num_embeds": 64,
            "max_batch_tokens": 64,
            "num_threads": 1,
            "backend": "torch",
            **MODELS[name].engine,
            **changes,
        }
        config = EngineConfig(source=str(checkpoint(name)), name=ModelId(name), **settings)
        engine = Engine(config, transport=transport or exchange.join())
        made.append(engine)
        return Peer(engine)

    yield make
    for engine in made:
        engine.close()


Settings = dict[str, Any]
WAYS: dict[str, tuple[Settings, Settings]] = {
    "tiles to plain pages of one token": ({"backend": "cpu"}, {"page_size": 1}),
    "plain pages of one token to tiles": ({"page_size": 1}, {"backend": "cpu"}),
    "tiles in pages of 1 and of 64": (
        {"backend": "cpu", "page_size": 1},
        {"backend": "cpu", "page_size": 64},
    ),
    "plain pages of 16 and of 64": ({"page_size": 16}, {"page_size": 64}),
}


@needs_kernel
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["llama", "llama-mqa-head-dim", "gemma3"])
def test_a_prompt_that_came_is_one_that_was_computed(
    make_peer: MakePeer, name: str, way: str
) -> None:
    """Within rounding, because backends round in other orders; and back at an engine like the first
    it is the same bit for bit, so that nothing was lost on the way there and back."""
    one, other = WAYS[way]
    sender, receiver, back = (
        make_peer(name, **one),
        make_peer(name, **other),
        make_peer(name, **one),
    )
    assert sender.info.content == receiver.info.content
    sender.prompt(range(len(PROMPT)))
    sender.move(receiver)
    computed = make_peer(name, **other)
    computed.prompt(range(len(PROMPT)))
    np.testing.assert_allclose(receiver.go_on(), computed.go_on(), atol=1e-4)
    receiver.move(back)
    assert np.array_equal(back.go_on(), sender.go_on())


@needs_kernel
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("way", [("cpu", "cpu"), ("cpu", "torch"), ("torch", "cpu")])
def test_what_is_on_the_host_is_what_was_computed(
    make_peer: MakePeer, way: tuple[str, str], page_size: int, dtype: str
) -> None:
    """In tiles as they lie, and in canonical form; bit for bit there and back."""
    settings: Settings = {"page_size": page_size, "dtype": dtype, "host_cache_bytes": 1 << 20}
    sender, between, back = (
        make_peer(backend=backend, **settings) for backend in (way[0], way[1], way[0])
    )
    tokens = range(len(PROMPT))
    sender.prompt(tokens)
    expected = sender.go_on()
    sender.swap_out()
    between.good(operations=[between.open_receive(tokens)])
    sender.good(operations=[sender.send_from_host(between)])
    received, sent = between.report(), sender.report()
    assert isinstance(received, ReceiveEnded)
    assert isinstance(sent, SendEnded)
    assert (received.error, sent.error) == (None, None)
    between.move(back)
    assert np.array_equal(back.go_on(), expected)


@pytest.mark.parametrize(
    ("slots", "host_slots", "is_fault"),
    [
        ([-1, -1], [3], True),
        ([-1, 5], [10**6, -1], False),
        ([-1, 5], [-1, 5], False),
        ([-2, 5], [3, -1], False),
        ([10**6, -1], [-1, 3], False),
    ],
)
def test_places_that_a_send_cannot_have(
    make_peer: MakePeer, slots: list[int], host_slots: list[int], is_fault: bool
) -> None:
    """A message that contradicts itself is a fault; slots outside of a tier are a failed row."""
    peer = make_peer(host_cache_bytes=1 << 20)
    target = SendTarget(address="local:0", lease=5, key=KEY, first=0)
    sent = SendSlots(send=2, slots=i32(slots), host_slots=i32(host_slots), target=target)
    if is_fault:
        with pytest.raises(EngineFault, match="columns differ"):
            peer.send(operations=[sent])
        return
    result = peer.send(operations=[sent])
    assert [(row.stage, row.index) for row in result.failures] == [("operations", 0)]
    assert not peer.has_report()


@needs_kernel
@pytest.mark.parametrize(("page_size", "begin"), [(64, 0), (64, 13), (1, 0)])
def test_equal_layouts_exchange_their_tiles(
    make_peer: MakePeer, page_size: int, begin: int
) -> None:
    sender, receiver = make_peer(backend="cpu"), make_peer(backend="cpu", page_size=page_size)
    tokens = range(len(PROMPT))
    sender.prompt(tokens)
    receiver.good(operations=[receiver.open_receive(tokens)])
    for part in (tokens[begin:], tokens[:begin]):
        if part:
            sender.good(operations=[sender.send_to(receiver, part, first=part[0])])
            _bytes_sent(sender)
    ended = receiver.report()
    assert isinstance(ended, ReceiveEnded)
    per_slot = sender.info.pool.groups[0].bytes_per_block // sender.page_size
    num_tiles = 3 + (begin > 0)  # the one in which both parts meet is sent twice
    assert ended.num_bytes == num_tiles * 16 * per_slot + 4 * len(PROMPT)
    np.testing.assert_allclose(receiver.go_on(), sender.go_on(), atol=1e-5)


@needs_kernel
def test_bfloat16_loses_nothing(make_peer: MakePeer) -> None:
    settings = {"dtype": "bfloat16", "backend": "cpu"}
    sender, back = make_peer(**settings), make_peer(**settings)
    between = make_peer(dtype="bfloat16", page_size=1)
    sender.prompt(range(len(PROMPT)))
    sender.move(between)
    between.move(back)
    assert np.array_equal(back.go_on(), sender.go_on())


def test_a_message_may_compute_and_send(make_peer: MakePeer) -> None:
    sender, receiver = make_peer(), make_peer(page_size=4)
    tokens = range(len(PROMPT))
    receiver.good(operations=[receiver.open_receive(tokens)])
    sender.prompt(tokens, sender.send_to(receiver, tokens))
    assert receiver.report() == ReceiveEnded(
        lease=1, num_tokens=len(tokens), num_bytes=_bytes_sent(sender), transport="in_process"
    )
    np.testing.assert_allclose(receiver.go_on(), sender.go_on(), atol=1e-6)


def _bytes_sent(sender: Peer) -> int:
    ended = sender.report()
    assert isinstance(ended, SendEnded)
    assert ended.error is None
    return ended.num_bytes


def test_parts_of_a_prompt_come_from_several_engines(make_peer: MakePeer) -> None:
    first, second, receiver = make_peer(), make_peer(page_size=4), make_peer(page_size=1)
    tokens = range(len(PROMPT))
    for sender in first, second:
        sender.prompt(tokens)
    receiver.good(operations=[receiver.open_receive(tokens)])
    second.good(operations=[second.send_to(receiver, tokens[20:], first=20)])
    _bytes_sent(second)
    assert not receiver.has_report(), "20 tokens are missing"
    first.good(operations=[first.send_to(receiver, tokens[:20])])
    ended = receiver.report()
    assert isinstance(ended, ReceiveEnded)
    assert ended.error is None
    np.testing.assert_allclose(receiver.go_on(), first.go_on(), atol=1e-6)


def test_the_rest_of_a_prompt_is_computed_behind_what_came(make_peer: MakePeer) -> None:
    sender, receiver = make_peer(), make_peer(page_size=4)
    sender.prompt(range(len(PROMPT)))
    sender.move(receiver, range(13))
    receiver.prompt(range(13, len(PROMPT)))
    np.testing.assert_allclose(receiver.go_on(), sender.go_on(), atol=1e-4)


def test_steps_go_on_while_nothing_comes(make_peer: MakePeer) -> None:
    receiver = make_peer()
    receiver.good(operations=[receiver.open_receive(range(16, 41))])
    receiver.prompt(range(13))
    assert not receiver.has_report()


def test_after_a_close_nothing_is_written(make_peer: MakePeer) -> None:
    """The fence: the block may be used for something else at once."""
    sender, receiver = make_peer(), make_peer()
    tokens = range(len(PROMPT))
    sender.prompt(tokens)
    receiver.good(operations=[receiver.open_receive(tokens)])
    receiver.good(operations=[CloseReceives(leases=[1, 77])])
    receiver.prompt(tokens)
    before = receiver.go_on()
    sender.good(operations=[sender.send_to(receiver, tokens)])
    ended = sender.report()
    assert isinstance(ended, SendEnded)
    assert ended.error is not None
    assert ended.error.code == "forbidden"
    assert np.array_equal(receiver.go_on(), before)
    assert not receiver.has_report()


def test_a_close_amid_a_transfer(make_peer: MakePeer) -> None:
    """A lease that is closed while pieces come in: the sender hears it, and it may be opened
    again."""
    exchange = InProcessExchange()
    gate = _Gate(exchange.join())
    sender, receiver = make_peer(transport=exchange.join()), make_peer(transport=gate)
    tokens = range(len(PROMPT))
    sender.prompt(tokens)
    receiver.good(operations=[receiver.open_receive(tokens)])
    sender.good(operations=[sender.send_to(receiver, tokens)])
    assert gate.came.wait(PATIENCE_S)
    receiver.good(operations=[CloseReceives(leases=[1])])
    gate.opens.set()
    ended = sender.report()
    assert isinstance(ended, SendEnded)
    assert ended.error is not None
    assert "takes nothing more" in ended.error.message
    assert not receiver.has_report()
    sender.move(receiver)
    np.testing.assert_allclose(receiver.go_on(), sender.go_on(), atol=1e-6)


class _Gate:
    """A transport at which a piece waits before it is written, until the gate opens."""

    def __init__(self, transport: KVTransport) -> None:
        self._transport = transport
        self.came, self.opens = threading.Event(), threading.Event()

    def accept(self, lease: int, key: bytes, sink: Any) -> None:
        write = sink.write

        def waiting(*piece: Any) -> None:
            self.came.set()
            assert self.opens.wait(PATIENCE_S)
            write(*piece)

        sink.write = waiting
        self._transport.accept(lease, key, sink)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"key": b"another key's 16"}, "forbidden"),
        ({"lease": 2}, "forbidden"),
        ({"first": 1}, "invalid_argument"),
        ({"address": "local:99"}, "invalid_argument"),
    ],
)
def test_what_a_receiver_did_not_ask_for_is_refused(
    make_peer: MakePeer, changes: dict[str, Any], code: str
) -> None:
    sender, receiver = make_peer(), make_peer()
    tokens = range(len(PROMPT))
    sender.prompt(tokens)
    receiver.good(operations=[receiver.open_receive(tokens)])
    sender.good(operations=[sender.send_to(receiver, tokens, **changes)])
    ended = sender.report()
    assert isinstance(ended, SendEnded)
    assert ended.error is not None
    assert ended.error.code == code
    assert not receiver.has_report()


def test_other_weights_are_refused(make_peer: MakePeer) -> None:
    sender, receiver = make_peer(), make_peer(dtype="bfloat16")
    sender.prompt(range(4))
    receiver.good(operations=[receiver.open_receive(range(4))])
    sender.good(operations=[sender.send_to(receiver, range(4))])
    ended = sender.report()
    assert isinstance(ended, SendEnded)
    assert ended.error is not None
    assert "weights, number type" in ended.error.message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"key": b"short"}, "16 bytes"),
        ({"slots": i32([])}, "no slot"),
        ({"slots": i32([3, 3])}, "twice"),
        ({}, "open already"),
    ],
)
def test_a_lease_that_cannot_be_opened(
    make_peer: MakePeer, changes: dict[str, Any], words: str
) -> None:
    sender, receiver = make_peer(), make_peer()
    tokens = range(len(PROMPT))
    lease = 1 if not changes else 2
    settings = {"lease": lease, "key": KEY, "slots": i32([100]), **changes}
    good = receiver.open_receive(tokens)
    receiver.good(operations=[good, OpenReceive(**settings)])
    ended = receiver.report()
    assert isinstance(ended, ReceiveEnded)
    assert ended.lease == lease
    assert ended.error is not None
    assert words in ended.error.message
    sender.prompt(tokens)
    sender.good(operations=[sender.send_to(receiver, tokens)])
    ended = receiver.report()
    assert isinstance(ended, ReceiveEnded)
    assert ended.error is None, "the good lease is as it was"


def test_over_tcp(make_peer: MakePeer) -> None:
    sender = make_peer(transport=TcpTransport())
    receiver = make_peer(transport=TcpTransport(), page_size=4)
    assert receiver.info.data_address.startswith("tcp://127.0.0.1:")
    sender.prompt(range(len(PROMPT)))
    sender.move(receiver)
    np.testing.assert_allclose(receiver.go_on(), sender.go_on(), atol=1e-6)


def test_an_engine_that_ends_tells_who_sends_to_it(make_peer: MakePeer) -> None:
    sender = make_peer(transport=TcpTransport())
    receiver = make_peer(transport=TcpTransport())
    sender.prompt(range(4))
    receiver.good(operations=[receiver.open_receive(range(4))])
    receiver.engine.close()
    sender.good(operations=[sender.send_to(receiver, range(4))])
    ended = sender.report()
    assert isinstance(ended, SendEnded)
    assert ended.error is not None
    assert ended.error.code == "transfer_failed"


def reports(driver: Driver) -> list[EngineReport]:
    found = []
    while (report := driver.engine.transfer()) is not None:
        found.append(report)
    return found


def test_an_engine_that_exchanges_nothing_says_so(make_driver: MakeDriver) -> None:
    driver = make_driver()
    assert driver.engine.info.data_address == ""
    slots = i32(range(3))
    target = SendTarget(address="tcp://127.0.0.1:1", lease=5, key=KEY, first=0)
    result = driver.send(
        operations=[
            OpenReceive(lease=5, key=KEY, slots=slots),
            SendSlots(send=2, slots=slots, target=target),
            CloseReceives(leases=[5]),
        ]
    )
    assert not result.failures
    received, sent = reports(driver)
    assert isinstance(received, ReceiveEnded)
    assert isinstance(sent, SendEnded)
    assert (received.lease, sent.send) == (5, 2)
    for error in received.error, sent.error:
        assert error is not None
        assert "exchanges no K and V" in error.message


@pytest.mark.parametrize("slot", [-1, 10**6])
def test_slots_outside_the_pool_are_a_failed_row_and_logged(
    make_peer: MakePeer, slot: int, caplog: pytest.LogCaptureFixture
) -> None:
    """No command waits for the failure of such an operation: control has checked it."""
    peer = make_peer()
    target = SendTarget(address="local:0", lease=5, key=KEY, first=0)
    sent = SendSlots(send=2, slots=i32([slot]), target=target)
    received = OpenReceive(lease=5, key=KEY, slots=i32([slot]))
    result = peer.send(operations=[sent, received])
    assert [(row.stage, row.index) for row in result.failures] == [
        ("operations", 0),
        ("operations", 1),
    ]
    assert not peer.has_report()
    logged = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    words = [row.error.message for row in result.failures]
    said = "internal error: the engine refuses operation"
    assert logged == [
        f"{said} 0 of a message, SendSlots: {words[0]}",
        f"{said} 1 of a message, OpenReceive: {words[1]}",
    ]


def test_a_load_that_fails_closes_the_transport() -> None:
    transport = TcpTransport()
    with pytest.raises(ModelNotFound):
        Engine(EngineConfig(source="no such", name=ModelId("x")), transport=transport)
    TcpTransport(transport.address).close()


@pytest.mark.parametrize("piece_bytes", [1, 700, 5000, 20_000])
def test_tokens_are_cut_into_pieces(
    make_peer: MakePeer, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    """All of them arrive, whether a piece holds a part of the tokens, or some of the layers."""
    monkeypatch.setattr("quire.engine.exchange.pieces.PIECE_BYTES", piece_bytes)
    sender, receiver = make_peer(), make_peer(page_size=4)
    sender.prompt(range(len(PROMPT)))
    sender.move(receiver)
    np.testing.assert_allclose(receiver.go_on(), sender.go_on(), atol=1e-6)


def test_pieces_begin_and_end_where_tiles_do() -> None:
    """Tiles of 16 tokens are sent whole: one that two pieces share would be sent twice."""
    form = PieceForm(TokenForm(2, 5, 64, torch.float32), 1)
    per_layer = form.tokens.bytes_per_layer
    assert PIECE_BYTES // per_layer % 16, "the largest piece would begin within a tile"
    pieces = list(form.cut(7, 5000))
    assert pieces[0].num_tokens == 9
    assert {piece.first % 16 for piece in pieces} == {7, 0}
    assert max(piece.num_tokens for piece in pieces) == PIECE_BYTES // per_layer // 16 * 16


@pytest.mark.parametrize(("num_tokens", "num_layers"), [(0, 3), (1, 1), (16, 80), (5000, 12)])
@pytest.mark.parametrize("num_heads", [1, 8, 600])
def test_pieces_cover_every_layer_of_every_token_once(
    num_tokens: int, num_layers: int, num_heads: int
) -> None:
    form = PieceForm(TokenForm(num_layers, num_heads, 64, torch.float32), 1)
    covered = np.zeros((num_tokens, num_layers), np.int32)
    for piece in form.cut(7, num_tokens):
        first = piece.first - 7
        tokens = slice(first, first + piece.num_tokens)
        covered[tokens, piece.first_layer : piece.first_layer + piece.num_layers] += 1
        kv_bytes = form.num_bytes(piece) - form.position_bytes(piece)
        assert kv_bytes <= PIECE_BYTES or piece.num_tokens * piece.num_layers == 1
    assert (covered == 1).all()
