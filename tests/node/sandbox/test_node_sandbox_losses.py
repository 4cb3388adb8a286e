"""A sandbox process that is lost again and again comes back, by itself, however often."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quire.core.config import SandboxConfig
from quire.core.errors import CapacityError, Draining, EngineLost, InvalidArgument
from quire.node.sandbox import link as link_module
from quire.node.sandbox.link import LinkSettings, SandboxLink, cache_directory
from quire.node.sandbox.losses import Losses, LossLimits
from quire.node.supervision.engine_loading import OnProgress
from quire.node.supervision.health import SandboxState, node_health
from quire.programs.sandbox.wasm import engine as engine_module
from quire.testing import VirtualClock


class Life:
    """A process that starts at once, or fails to."""

    fails = False

    owes_s = 0.0

    def __init__(self, *_: object, on_progress: OnProgress, **__: object) -> None:
        self.pid = 1
        self.on_progress = on_progress

    def silent_s(self) -> float:
        return self.owes_s

    async def start(self, *_: object, **__: Any) -> None:
        await asyncio.sleep(0)
        if self.fails:
            raise EngineLost("no memory for a process")

    async def close(self) -> None:
        pass


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def link(clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SandboxLink:
    monkeypatch.setattr(link_module, "ProcessLife", Life)
    monkeypatch.setattr(Life, "fails", False)
    return SandboxLink("0", LinkSettings(SandboxConfig(cache_dir=tmp_path), ()), clock)


async def lose(link: SandboxLink, times: int) -> None:
    for _ in range(times):
        await link.ready()
        link._on_lost("it was killed")


def test_a_node_without_a_cache_directory_finds_what_the_tests_have_built(
    sandbox_cache: Path, pytestconfig: pytest.Config
) -> None:
    """Building it takes longer than everything else of a test."""
    if getattr(pytestconfig, "cache", None) is None:
        pytest.skip("without pytest's cache each test process builds its own")
    assert cache_directory(SandboxConfig()) == sandbox_cache


def test_a_sandbox_without_its_runtime_says_so(
    clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "find_spec", lambda name: None)
    health = SandboxLink("0", LinkSettings(SandboxConfig(cache_dir=tmp_path), ()), clock).health()
    assert health.state is SandboxState.UNAVAILABLE
    assert "pip install 'quire[sandbox]'" in health.detail


async def test_five_losses_within_a_minute_are_a_pause_and_no_end(
    link: SandboxLink, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert link.health().state is SandboxState.IDLE
    await lose(link, 5)
    for _ in range(3):  # whoever asks is told, each time
        with pytest.raises(CapacityError, match=r"lost 5 times .* again in 5 s"):
            await link.ready()
    health = link.health()
    assert (health.state, health.losses) == (SandboxState.PAUSED, 5)
    assert "because it was killed" in health.detail
    clock.advance(5)
    await link.ready()
    assert link.health().state is SandboxState.READY
    assert link.health().detail == ""
    monkeypatch.setattr(Life, "owes_s", 11.0)
    assert "no sign of life for 11 s" in link.health().detail
    await link.close()


async def test_the_pause_grows_with_further_losses_and_has_a_bound(
    link: SandboxLink, clock: VirtualClock
) -> None:
    await lose(link, 5)
    for pause_s in (5, 10, 20, 40):
        with pytest.raises(CapacityError, match=f"again in {pause_s} s"):
            await link.ready()
        clock.advance(pause_s)
        await lose(link, 1)
    # old losses are forgotten meanwhile: what is left of the window decides
    clock.advance(100)
    await lose(link, 4)
    await link.ready()
    assert link.health().losses == 13
    await link.close()


async def test_a_start_that_fails_is_tried_again(
    link: SandboxLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Life, "fails", True)
    for _ in range(7):
        with pytest.raises(EngineLost, match="no memory"):
            await link.ready()
    monkeypatch.setattr(Life, "fails", False)
    await asyncio.gather(*(link.ready() for _ in range(3)))
    assert link.is_ready
    await link.close()


@pytest.mark.parametrize("num_lost", [1, 2])
async def test_a_process_that_is_lost_while_it_starts_is_started_once_more(
    link: SandboxLink, monkeypatch: pytest.MonkeyPatch, num_lost: int
) -> None:
    """For who had it started and for who came while it was being lost: nothing of theirs was in
    it. Once: what is lost at each start is said."""
    num_starts, begun, may_end = 0, asyncio.Event(), asyncio.Event()

    async def start(self: Life, *_: object, **__: Any) -> None:
        nonlocal num_starts
        num_starts += 1
        number = num_starts
        begun.set()
        await may_end.wait()
        if number <= num_lost:
            raise EngineLost(f"process {number} was ended by SIGKILL")

    monkeypatch.setattr(Life, "start", start)
    waiting = [asyncio.create_task(link.ready())]
    await begun.wait()
    waiting.append(asyncio.create_task(link.ready()))
    await asyncio.sleep(0)  # it waits for the same start
    may_end.set()
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert num_starts == 2
    if num_lost == 1:
        assert ends == [None, None]
        assert link.is_ready
    else:
        assert [str(end) for end in ends] == ["process 2 was ended by SIGKILL"] * 2
    await link.close()


async def test_what_keeps_a_process_from_starting_is_said_at_once(
    link: SandboxLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not start the next time either."""
    num_starts = 0

    async def start(self: Life, *_: object, **__: Any) -> None:
        nonlocal num_starts
        num_starts += 1
        raise InvalidArgument("there is no such directory")

    monkeypatch.setattr(Life, "start", start)
    with pytest.raises(InvalidArgument, match="no such directory"):
        await link.ready()
    assert num_starts == 1


async def test_health_says_what_a_process_that_starts_is_doing(
    link: SandboxLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sends the first code to a node waits for minutes where the machine is busy."""
    at_work, go_on = asyncio.Event(), asyncio.Event()

    async def build(self: Life, *_: object, **__: Any) -> None:
        self.on_progress("building the sandbox", 0.0)
        at_work.set()
        await go_on.wait()

    monkeypatch.setattr(Life, "start", build)
    waiting = asyncio.create_task(link.ready())
    await at_work.wait()
    health = link.health()
    assert (health.state, health.detail) == (SandboxState.STARTING, "building the sandbox")
    # it is as usual: nothing is wrong with the node
    assert node_health({}, {"0": health}, draining=False, failure=None).detail == ""
    go_on.set()
    await waiting
    assert link.health().detail == ""
    await link.close()


async def test_who_waits_for_a_start_is_told_of_the_end(
    link: SandboxLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was cancelled instead would have no answer of ours."""
    begun = asyncio.Event()

    async def never(self: Life, *_: object, **__: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Life, "start", never)
    waiting = asyncio.create_task(link.ready())
    await begun.wait()
    await link.close()
    with pytest.raises(Draining, match="is closing"):
        await waiting


def test_losses_that_are_far_apart_are_no_reason_to_pause() -> None:
    losses = Losses(LossLimits(max_losses=2, window_s=10))
    for now_s in (0, 11, 22):
        losses.note(now_s, "it was killed")
        assert losses.problem(now_s) is None
    losses.note(30, "it was killed")
    assert losses.problem(30) is not None
