"""A queue is closed while a message of its decode is in flight, as when a client goes away."""

from __future__ import annotations

from control_world import World

from quire.control import Controller
from quire.core.calls import CloseQueue, CreateQueue
from quire.core.commands import AllocPages, Decode, ExportPages
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.events import Called, ProgramStarted
from quire.core.ids import CommandId, EngineId, ModelId, PageId, ProgramId, QueueId, TenantId
from quire.core.scheduler_config import SchedulerConfig
from quire.testing import ControlHarness

PROGRAM, QUEUE, ENGINE = ProgramId(1), QueueId(1), EngineId("fake")


def test_closing_a_queue_with_a_decode_in_flight() -> None:
    harness = ControlHarness(Controller(SchedulerConfig()))
    harness.post(
        ProgramStarted(time_s=0.0, program=PROGRAM, tenant=TenantId("t"), form="inferlet", name="p")
    )
    harness.post(Called(time_s=0.0, program=PROGRAM, call=CreateQueue(QUEUE, ModelId("fake"))))
    pages = [PageId(number) for number in range(8)]
    _, decode = harness.issue(
        PROGRAM,
        QUEUE,
        AllocPages(id=CommandId(1), pages=pages),
        Decode(
            id=CommandId(2),
            context=[],
            output=pages,
            tokens=[1, 2, 3],
            position=0,
            sampler=SamplerSpec(),
            stop=StopSpec(20),
        ),
    )
    harness.step_engine(ENGINE)
    assert harness.num_in_flight(ENGINE)
    harness.call(PROGRAM, CloseQueue(QUEUE))
    harness.run_until_idle()
    assert decode.status == "cancelled"
    assert harness.controller.statistics().engines[0].pool.num_held == 0  # type: ignore[attr-defined]


def test_a_closed_queue_waits_for_nothing() -> None:
    """Its export waited for the decode of another queue, which goes on."""
    world = World()
    world.program(1, queues=2)
    world.issue(1, world.alloc([1, 2, 3]), world.decode([1, 2, 3], [4, 5], 8))
    world.harness.step()
    [waiting] = world.issue(1, ExportPages(id=world.id(), pages=[1], name="kept"), queue=2)
    engine = world.controller._engines[ENGINE]
    assert len(engine.stalled) == 1
    world.harness.call(PROGRAM, CloseQueue(QueueId(2)))
    assert waiting.status == "cancelled"
    assert not engine.stalled
    world.run()
