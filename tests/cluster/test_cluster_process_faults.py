"""A few of the rounds of ``process_faults``; ``make chaos-processes`` runs a hundred."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cluster_processes
import pytest
from cluster_processes import QuireProcess
from http_peer import Asked, HttpPeer, Said
from process_faults import Fault, NotMet, check_met, rounds

FAULTS = (
    Fault("leave", "client", "before_fence"),
    Fault("cut", "receiver", "mid_layer"),
    Fault("stop", "sender", "before_fence"),
    Fault("kill", "receiver", "after_remote_send"),
)


@pytest.mark.e2e
@pytest.mark.timeout(600)
async def test_answers_of_real_processes_are_right_whatever_breaks() -> None:
    done = await rounds(len(FAULTS), num_nodes=2, faults=FAULTS)
    assert sum(done.outcomes.values()) == len(FAULTS)


@pytest.mark.parametrize(
    "text",
    [
        "no engine takes this request now: node-0 dead (no answer to /health within 1 s), "
        "node-1 dead (no answer to /health within 1 s); try again",
        "node node-0 is lost: no answer to /health within 1 s; no engine takes this request now: "
        "node-0 dead (no answer to /health within 1 s); try again",
    ],
)
def test_a_round_in_which_no_node_at_all_answers_does_not_count(text: str) -> None:
    with pytest.raises(NotMet):
        check_met(text)


@pytest.mark.parametrize(
    "text",
    [
        "node node-0 is lost: no answer to /health within 1 s",
        "no engine takes this request now: node-0 dead (no answer to /health within 1 s), "
        "node-1 full; try again",
    ],
)
def test_a_round_that_loses_its_own_victim_alone_counts(text: str) -> None:
    check_met(text)


def asked_of(peer: HttpPeer, directory: Path) -> QuireProcess:
    """A process that lives, and is asked at ``peer``."""
    process: Any = QuireProcess("node-1", [], directory, port=peer.port)
    process._process = SimpleNamespace(poll=lambda: None)
    process.log.write_text("it loads")
    return process  # type: ignore[no-any-return]


async def test_who_does_not_answer_once_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cluster_processes, "ASK_S", 0.05)
    asked: list[Asked] = []

    async def answer(one: Asked) -> Said:
        asked.append(one)
        if len(asked) == 1:
            await asyncio.Event().wait()
        return Said()

    async with HttpPeer(answer) as peer:
        await asked_of(peer, tmp_path).ready()
    assert len(asked) > 1


async def test_who_never_gets_ready_is_told_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def answer(one: Asked) -> Said:
        return Said(503, b"engine quire-mini#0 is loading")

    async def once(holds: Callable[[], Awaitable[bool]], what: str) -> None:
        assert not await holds()
        raise TimeoutError

    monkeypatch.setattr(cluster_processes, "until", once)
    said = r"is not ready .* load of \d+: /ready is 503: engine quire-mini#0 is loading; it loads"
    async with HttpPeer(answer) as peer:
        with pytest.raises(AssertionError, match=said):
            await asked_of(peer, tmp_path).ready()
