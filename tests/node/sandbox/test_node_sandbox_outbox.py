"""What one guest cannot be told costs no other guest its messages."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quire.core.config import SandboxConfig
from quire.core.errors import ErrorRecord, InvalidArgument, ProgramTerminated
from quire.core.ids import ProgramId, TenantId
from quire.core.quotas import Quotas
from quire.node.sandbox import link as link_module
from quire.node.sandbox import messages as s
from quire.node.sandbox.link import LinkSettings, SandboxLink
from quire.node.transports.life import ProcessMessages
from quire.programs.sandbox import messages as m
from quire.programs.sandbox.limits import GuestLimits
from quire.programs.sandbox.program import GuestProgram
from quire.testing import VirtualClock

LIMITS = GuestLimits(memory_bytes=1, turn_ms=1, cpu_ms=1, calls_per_s=1, outstanding_io=1)
PROGRAM = GuestProgram(b"", "digest", m.Manifest("p"))
HALF = "\ud800"


class Life:
    """A process that reads what it is sent, as it comes over the wire."""

    heard: list[s.ToSandbox]

    def __init__(
        self, kind: str, name: str, command: object, speech: ProcessMessages[Any, Any],
        *_: object, **__: object,
    ) -> None:  # fmt: skip
        self._encoder, self._decoder = speech.encoder, s.node_codec()

    async def start(self, *_: object, **__: Any) -> None:
        await asyncio.sleep(0)

    def say(self, message: s.ToSandbox) -> None:
        self.heard.append(self._decoder.decode(self._encoder.encode(message)))

    async def close(self) -> None:
        pass


class Peer:
    """The node's side of one guest."""

    def __init__(self) -> None:
        self.error: ErrorRecord | None = None

    def on_report(self, report: s.GuestReport) -> None:
        raise AssertionError("the process says nothing")

    def on_fetched(self, event: m.Fetched | m.FetchFailed) -> None:
        raise AssertionError("the process fetches nothing")

    def on_lost(self, error: ErrorRecord) -> None:
        self.error = error


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[s.ToSandbox]:
    """The messages that the process has received."""
    messages: list[s.ToSandbox] = []
    monkeypatch.setattr(link_module, "ProcessLife", Life)
    monkeypatch.setattr(Life, "heard", messages, raising=False)
    return messages


@pytest.fixture
def link(heard: list[s.ToSandbox], tmp_path: Path) -> SandboxLink:
    return SandboxLink("0", LinkSettings(SandboxConfig(cache_dir=tmp_path), ()), VirtualClock())


def told(heard: list[s.ToSandbox]) -> list[tuple[int, m.GuestEvents]]:
    """Every event with its guest, in the order in which they came."""
    news = [one for message in heard if isinstance(message, s.Tell) for one in message.news]
    return [(one.guest, event) for one in news for event in one.events]


@pytest.mark.parametrize("value", [10**30, {"deep": [1, -(10**30)]}, HALF, {"name": HALF}])
async def test_an_answer_that_cannot_be_sent_is_an_error_in_its_place(
    link: SandboxLink, heard: list[s.ToSandbox], value: object
) -> None:
    await link.ready()
    peers = [Peer(), Peer(), Peer()]
    first, asking, last = [link.add(peer) for peer in peers]
    link.tell(first, m.Message("one"))
    link.tell(asking, m.Message("before"))
    link.tell(asking, m.ServiceAnswered(7, value))
    link.tell(asking, m.Message("behind"))
    link.tell(last, m.Message("two"))
    await asyncio.sleep(0)
    events = told(heard)
    assert [guest for guest, _ in events] == [first, asking, asking, asking, last]
    refused = events[2][1]
    assert isinstance(refused, m.ServiceRefused)
    assert (refused.number, refused.error.code) == (7, InvalidArgument.code)
    assert "64 bits or half of a surrogate pair" in refused.error.message
    others = [event for _, event in events if event is not refused]
    assert others == [m.Message(text) for text in ("one", "before", "behind", "two")]
    assert [peer.error for peer in peers] == [None] * 3
    await link.close()


async def test_a_guest_that_lacks_another_event_is_ended_alone(
    link: SandboxLink, heard: list[s.ToSandbox]
) -> None:
    await link.ready()
    lacking, other = Peer(), Peer()
    numbers = link.add(lacking), link.add(other)
    link.tell(numbers[0], m.Message(HALF))
    link.tell(numbers[0], m.Message("behind it"))
    link.tell(numbers[1], m.Message("theirs"))
    await asyncio.sleep(0)
    assert told(heard) == [(numbers[1], m.Message("theirs"))]
    assert lacking.error is not None
    assert (lacking.error.code, other.error) == (ProgramTerminated.code, None)
    assert "Message cannot be told to it" in lacking.error.message
    assert [one.guest for one in heard if isinstance(one, s.Stop)] == [numbers[0]]
    link.tell(numbers[0], m.Message("too late"))
    await asyncio.sleep(0)
    assert told(heard) == [(numbers[1], m.Message("theirs"))]
    await link.close()


def start(guest: int, **launch: Any) -> s.Start:
    given: dict[str, Any] = {
        "program": ProgramId(guest), "args": (), "models": (), "quotas": Quotas(), "seed": 1,
        "mailbox_capacity": 1, "mailbox_limit": 1, "max_message_bytes": 1, "grace_s": 1.0,
    } | launch  # fmt: skip
    return s.Start(
        guest=guest, tenant=TenantId("t"), name="p", digest=PROGRAM.digest, limits=LIMITS,
        launch=m.GuestLaunch(**given), hosts=(), allow_private_hosts=False,
    )  # fmt: skip


@pytest.mark.parametrize("launch", [{"seed": 10**30}, {"args": (HALF,)}, {"named": {"a": HALF}}])
async def test_a_launch_that_cannot_be_sent_ends_its_program_alone(
    link: SandboxLink, heard: list[s.ToSandbox], launch: dict[str, Any]
) -> None:
    await link.ready()
    peers = [Peer(), Peer(), Peer()]
    numbers = [link.add(peer) for peer in peers]
    for number in numbers:
        given = launch if number == numbers[1] else {}
        link.start_guest(start(number, **given), PROGRAM, ())
        link.tell(number, m.Message("hello"))
    await asyncio.sleep(0)
    starts = [one for message in heard if isinstance(message, s.Starts) for one in message.starts]
    kept = [numbers[0], numbers[2]]
    assert [one.guest for one in starts] == kept
    assert told(heard) == [(number, m.Message("hello")) for number in kept]
    assert [peer.error is None for peer in peers] == [True, False, True]
    assert peers[1].error is not None
    assert "its launch cannot be told to its process" in peers[1].error.message
    await link.close()
