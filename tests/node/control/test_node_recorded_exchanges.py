"""Transfers between engines in the log of a run: their ends are events that a replay needs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from fake_node import TENANT, StartNode, fake_config

from quire.core.actions import Action
from quire.core.events import Event, ExchangeEnded
from quire.core.exchange import ReceiveEnded, SendEnded, SendTarget
from quire.core.ids import ModelId
from quire.node import Node
from quire.node.control.recorder import EventRecorder, LogEntry, read_log
from quire.node.control.replaying import replay
from quire.node.transports import InProcessTransport
from quire.programs.builtin import CompletionRequest, complete
from quire.programs.builtin.exchange import (
    PrepareRequest,
    SendRequest,
    prepare_receive,
    remote_send,
)
from quire.testing import FakeEngine, fake_pool
from quire.testing.fake_engine.network import FakeNetwork

R = TypeVar("R")
MODEL, KEY = ModelId("fake"), b"0123456789abcdef"
PROMPT = tuple(range(1, 43))
END = len(PROMPT) - 1


async def result(
    node: Node, program: Callable[..., AsyncGenerator[R, None]], asked: Any
) -> list[R]:
    return [one async for one in node.session(TENANT, "s").call(program, asked)]


async def start_two(start_node: StartNode, directory: Path) -> list[Node]:
    """A sender and a receiver, each with its log."""
    network, pool = FakeNetwork(), fake_pool(page_size=4, num_blocks=256)
    return [
        await start_node(
            fake_config(record_path=directory / f"{name}.log"),
            transport_factory=lambda config: InProcessTransport(
                config.name, lambda: FakeEngine(pool, model=config.name, network=network)
            ),
        )
        for name in ("sender", "receiver")
    ]


async def move_and_generate(sender: Node, receiver: Node) -> None:
    """Send a prompt's K and V and generate from them."""
    (leased,) = await result(
        receiver, prepare_receive, PrepareRequest(MODEL, PROMPT[:END], END, KEY, 60.0)
    )
    target = SendTarget(address=leased.address, lease=leased.lease.number, key=KEY, first=0)
    asked = SendRequest(MODEL, PROMPT, 0, END, 0, target, leased.content)
    (sent,) = await result(sender, remote_send, asked)
    assert sent.num_tokens == END
    chunks = await result(
        receiver,
        complete,
        CompletionRequest(PROMPT, 4, ignore_eos=True, lease=leased.lease, num_leased=END),
    )
    assert sum(len(chunk.token_ids) for chunk in chunks) == 4
    for node in (sender, receiver):
        await node.stop()


def ends(log: Path) -> list[type]:
    """The kinds of the ends of transfers in ``log``."""
    events = [entry.event for entry in read_log(log) if isinstance(entry, LogEntry)]
    return [type(event.ended) for event in events if isinstance(event, ExchangeEnded)]


async def test_the_ends_of_transfers_are_recorded_and_replayed(
    start_node: StartNode, tmp_path: Path
) -> None:
    await move_and_generate(*await start_two(start_node, tmp_path))
    for name, kind in (("sender", SendEnded), ("receiver", ReceiveEnded)):
        log = tmp_path / f"{name}.log"
        assert set(ends(log)) == {kind}
        report = replay(log)
        assert report.equal, report.divergence
        assert report.num_actions > 5


@pytest.mark.parametrize(("name", "kind"), [("sender", SendEnded), ("receiver", ReceiveEnded)])
async def test_a_log_that_lacks_the_end_of_a_transfer_diverges(
    start_node: StartNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: type[SendEnded | ReceiveEnded],
) -> None:
    observe = EventRecorder.observe

    def without(self: EventRecorder, event: Event, actions: Sequence[Action]) -> None:
        if not (isinstance(event, ExchangeEnded) and isinstance(event.ended, kind)):
            observe(self, event, actions)

    monkeypatch.setattr(EventRecorder, "observe", without)
    await move_and_generate(*await start_two(start_node, tmp_path))
    report = replay(tmp_path / f"{name}.log")
    assert report.divergence is not None
