"""Images are unpacked, and grammars tried, before control hears of them: who waits, in what order,
how it ends."""

from __future__ import annotations

import asyncio
import errno
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire.core.calls import CloseQueue, CreateQueue, Issue
from quire.core.commands import AllocEmbeds, Command, Decode, EmbedImage, Synchronize
from quire.core.decoding import GrammarSpec, SamplerSpec, StopSpec
from quire.core.engine_info import ImageFraming
from quire.core.events import Called, Event, EventAt, ProgramEnded
from quire.core.ids import CommandId, ModelId, ProgramId, QueueId, TenantId
from quire.core.quotas import Quotas
from quire.core.system_clock import SystemClock
from quire.engine.vision.framing import read_pixels
from quire.engine.vision.unpacker import Unpacker
from quire.node.control.images import NUM_PROCESSES, ImageFramer
from quire.programs.runtime.event_port import EventPort

MODEL, QUEUE = ModelId("sees"), QueueId(1)
ONE, OTHER = TenantId("one"), TenantId("other")
FRAMING = ImageFraming(shortest_edge=None, size=2, resample=3, crop=None)
Ready = list[Command]


def image(number: int, file: bytes = b"file") -> EmbedImage:
    return EmbedImage(id=CommandId(number), image=file, positions=[], embeds=[])


def decode(number: int, grammar: GrammarSpec | None) -> Decode:
    return Decode(
        id=CommandId(number),
        context=[],
        output=[],
        tokens=[1],
        position=0,
        sampler=SamplerSpec(),
        stop=StopSpec(max_tokens=1),
        grammar=grammar,
    )


def sync(number: int) -> Synchronize:
    return Synchronize(id=CommandId(number))


class Framer:
    """Frames when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Ready, Any]] = []
        self.framings: list[ImageFraming] = []

    def __call__(self, commands: Ready, framing: ImageFraming | None, done: Any) -> bool:
        if framing is None:
            return False
        self.asked.append((commands, done))
        self.framings.append(framing)
        return True

    def finish(self) -> None:
        commands, done = self.asked.pop(0)
        done(commands)


class World:
    """Ports with one list of what they post."""

    def __init__(self, framing: ImageFraming | None = FRAMING) -> None:
        self.framer = Framer()
        self.events: list[Event] = []
        images = SimpleNamespace(framing=framing)
        self._models: Any = [
            SimpleNamespace(base=ModelId("blind"), info=SimpleNamespace(images=None)),
            SimpleNamespace(base=MODEL, info=SimpleNamespace(images=images)),
        ]

    def port(self, program: int = 1, model: ModelId = MODEL) -> EventPort:
        made = EventPort(
            ProgramId(program),
            Quotas(),
            lambda: self._models,
            self._post,
            clock=SystemClock(),
            prepare=self.framer,
        )
        made.post(CreateQueue(QUEUE, model))
        return made

    def _post(self, event_at: EventAt) -> None:
        self.events.append(event_at(0.0))

    def issued(self, program: int = 1) -> list[int]:
        return [
            command.id
            for event in self.events
            if isinstance(event, Called) and event.program == program
            for command in getattr(event.call, "commands", ())
        ]


def test_what_is_behind_an_image_waits_and_other_programs_do_not() -> None:
    world = World()
    port, other = world.port(), world.port(2)
    port.post(Issue(QUEUE, [sync(1)]))
    port.post(Issue(QUEUE, [image(2), sync(3)]))
    port.post(Issue(QUEUE, [sync(4)]))
    port.post(CloseQueue(QUEUE))
    other.post(Issue(QUEUE, [sync(9)]))
    assert (world.issued(), world.issued(2)) == ([1], [9])
    assert world.framer.framings == [FRAMING]
    world.framer.finish()
    assert world.issued() == [1, 2, 3, 4]
    last = world.events[-1]
    assert isinstance(last, Called)
    assert last.call == CloseQueue(QUEUE)
    port.post(CreateQueue(QUEUE, MODEL))
    port.post(Issue(QUEUE, [sync(5)]))
    assert world.issued() == [1, 2, 3, 4, 5]


def test_images_are_framed_one_behind_the_other() -> None:
    world = World()
    port = world.port()
    for number in (1, 3, 5):
        port.post(Issue(QUEUE, [image(number)]))
        port.post(Issue(QUEUE, [sync(number + 1)]))
    for seen in ([], [1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6]):
        assert world.issued() == seen
        assert len(world.framer.asked) == (len(seen) < 6)
        if len(seen) < 6:
            world.framer.finish()


def test_a_program_that_ends_waits_for_no_image() -> None:
    world = World()
    port = world.port()
    port.post(Issue(QUEUE, [image(1)]))
    port.post(Issue(QUEUE, [sync(2)]))
    port.close("cancelled")
    assert isinstance(world.events[-1], ProgramEnded)
    num_events = len(world.events)
    world.framer.finish()
    assert len(world.events) == num_events


def test_what_is_behind_a_grammar_waits_too_and_a_decode_without_one_does_not() -> None:
    world = World()
    port = world.port()
    grammar = GrammarSpec("regex", "a")
    for number, constraint in ((1, None), (2, grammar), (3, None)):
        port.post(Issue(QUEUE, [decode(number, constraint)]))
    assert world.issued() == [1]
    world.framer.finish()
    assert world.issued() == [1, 2, 3]


@pytest.mark.parametrize("model", [ModelId("blind"), MODEL])
def test_what_is_not_framed_goes_on_at_once(model: ModelId) -> None:
    """To an engine that takes files, or none at all: control says so."""
    world = World(framing=None)
    port = world.port(model=model)
    port.post(Issue(QUEUE, [image(1)]))
    assert (world.issued(), world.framer.asked) == ([1], [])


WORKER = """
import json, sys, time
for line in sys.stdin.buffer:
    file = sys.stdin.buffer.read(json.loads(line)["num_bytes"])
    if file == b"hang":
        time.sleep(3600)
    if file == b"crash":
        sys.exit(1)
    sys.stdout.buffer.write(b'{"width": 2, "height": 2}\\n' + file * 3)
    sys.stdout.buffer.flush()
"""


class Framing:
    """``ImageFramer`` over processes that do as files say."""

    def __init__(self, folder: Path) -> None:
        script = folder / "worker.py"
        script.write_text(WORKER)
        self.unpackers: list[Unpacker] = []
        self._command = (sys.executable, str(script))
        self.framer = ImageFramer(self._unpacker)

    def _unpacker(self) -> Unpacker:
        self.unpackers.append(Unpacker(self._command, timeout_s=3600.0))
        return self.unpackers[-1]

    def __call__(self, *commands: Command, tenant: TenantId = ONE) -> asyncio.Future[Ready]:
        ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        assert self.framer.frame(tenant, list(commands), FRAMING, ready.set_result)
        return ready


def wait_for_processes(framing: Framing) -> None:
    """Wait until a file is in each process."""
    while any(unpacker.pid is None for unpacker in framing.unpackers):
        time.sleep(0.001)


async def test_a_file_that_hangs_holds_its_sender_alone(tmp_path: Path) -> None:
    framing = Framing(tmp_path)
    hangs = framing(image(1, b"hang"))
    for _ in range(NUM_PROCESSES + 1):
        alloc = AllocEmbeds(id=CommandId(2), embeds=[])
        async with asyncio.timeout(60):
            kept, framed = await framing(alloc, image(3, b"abcd"))
        assert kept is alloc
        assert isinstance(framed, EmbedImage)
        pixels = read_pixels(framed.image)
        assert pixels is not None
        assert pixels.tobytes() == b"abcd" * 3
        assert not hangs.done()
    await asyncio.to_thread(framing.framer.close)
    assert [unpacker.pid for unpacker in framing.unpackers] == [None] * NUM_PROCESSES
    assert not framing.framer.frame(ONE, [image(4)], FRAMING, print), "it is closed"


async def test_tenants_take_turns_however_many_files_one_of_them_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.node.control.images.NUM_PROCESSES", 1)
    framing = Framing(tmp_path)
    order: list[str] = []

    def noted(name: str, ready: asyncio.Future[Ready]) -> asyncio.Future[Ready]:
        ready.add_done_callback(lambda _: order.append(name))
        return ready

    ones = [noted("one", framing(image(number, b"abcd"))) for number in range(1, 9)]
    other = noted("other", framing(image(9, b"abcd"), tenant=OTHER))
    async with asyncio.timeout(60):
        await asyncio.gather(*ones, other)
    await asyncio.to_thread(framing.framer.close)
    assert order.index("other") <= 2, order


async def test_so_many_files_of_a_tenant_wait_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.node.control.images.MAX_WAITING", 2)
    framing = Framing(tmp_path)
    try:
        accepted = [framing(image(number, b"hang")) for number in range(NUM_PROCESSES)]
        async with asyncio.timeout(60):
            await asyncio.to_thread(wait_for_processes, framing)
            accepted += [framing(image(number, b"hang")) for number in (10, 11)]
            alloc = AllocEmbeds(id=CommandId(30), embeds=[])
            kept, refused = await framing(alloc, image(31, b"hang"))
        assert not any(one.done() for one in accepted)
    finally:
        await asyncio.to_thread(framing.framer.close)
    assert kept is alloc
    assert isinstance(refused, EmbedImage)
    assert refused.refusal is not None
    assert refused.refusal.code == "quota_exceeded"


async def test_a_file_without_pixels_is_refused_with_the_reason(tmp_path: Path) -> None:
    framing = Framing(tmp_path)
    async with asyncio.timeout(60):
        (refused,) = await framing(image(1, b"crash"))
        (framed,) = await framing(image(2, b"wxyz"))
        (again,) = await framing(framed)
    framing.framer.close()
    assert isinstance(refused, EmbedImage)
    assert refused.image == b""
    assert refused.refusal is not None
    assert "it ended it in the process that unpacks images" in refused.refusal.message
    assert again == framed, "pixels are no file"


@pytest.mark.parametrize(
    ("failure", "code"),
    [(OSError(errno.EAGAIN, "no room"), "capacity"), (ValueError("a bug"), "engine_fault")],
)
async def test_what_is_no_fault_of_the_file_is_told_as_such(
    failure: Exception, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that its program has issued since waits for an answer."""
    framing = Framing(tmp_path)

    def fails(*_: Any, **__: Any) -> None:
        raise failure

    with monkeypatch.context() as patched:
        patched.setattr("quire.engine.vision.unpacker.PipedProcess", fails)
        async with asyncio.timeout(60):
            (refused,) = await framing(image(1, b"wxyz"))
    assert isinstance(refused, EmbedImage)
    assert refused.refusal is not None
    assert refused.refusal.code == code
    async with asyncio.timeout(60):
        (framed,) = await framing(image(2, b"wxyz"))
    await asyncio.to_thread(framing.framer.close)
    assert isinstance(framed, EmbedImage)
    assert framed.refusal is None
