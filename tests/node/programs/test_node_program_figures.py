"""What programs have used, kept beyond their end; counts of ends by outcome."""

from __future__ import annotations

import pytest
from fake_node import TENANT, StartNode, fake_config, until

from quire.core.actions import ProgramClosed
from quire.core.errors import TraitMissing
from quire.core.events import ENDED_BY_CLIENT, ENGINE_WAS_LOST, LAST_CALL, REFUSED, Tick
from quire.core.ids import ProgramForm, ProgramId
from quire.core.traits import Trait
from quire.node.programs.figures import ProgramFigures, ResourceUsage, with_guest
from quire.programs.api import Api
from quire.programs.inferlet import inferlet
from quire.programs.runtime.running import GuestSpent

FIRST, SECOND = ProgramId(1), ProgramId(2)


def close(
    figures: ProgramFigures,
    program: ProgramId,
    reason: str = "finished",
    form: ProgramForm = "inferlet",
) -> None:
    closed = ProgramClosed(
        program=program,
        form=form,
        reason=reason,
        num_prefilled_tokens=1,
        num_cached_tokens=2,
        num_generated_tokens=3,
        num_encoded_tokens=7,
        num_preemptions=4,
        service_s=5.0,
        waiting_s=6.0,
    )
    figures.observe(Tick(time_s=0.0), [closed])


def test_incarnations_count_together() -> None:
    figures = ProgramFigures()
    figures.expect(FIRST)
    figures.expect(SECOND)
    assert figures.of([FIRST, SECOND], ended=False) is None
    close(figures, FIRST, ENGINE_WAS_LOST)
    assert figures.of([FIRST, SECOND], ended=False) == ResourceUsage(1, 2, 3, 7, 4, 5.0, 6.0)
    close(figures, SECOND)
    assert figures.of([FIRST, SECOND], ended=True) == ResourceUsage(2, 4, 6, 14, 8, 10.0, 12.0)


def test_control_is_waited_for_once_the_program_has_ended() -> None:
    figures = ProgramFigures(lambda: close(figures, FIRST))
    figures.expect(FIRST)
    assert figures.of([FIRST], ended=False) is None
    assert figures.of([FIRST], ended=True) is not None


def test_only_what_is_expected_is_kept_until_it_is_forgotten() -> None:
    figures = ProgramFigures()
    close(figures, FIRST)
    assert len(figures) == 0
    figures.expect(FIRST)
    figures.expect(SECOND)
    figures.forget([FIRST])
    close(figures, FIRST)
    assert len(figures) == 1
    close(figures, SECOND, REFUSED)
    assert len(figures) == 0, "no record will be forgotten with it"


def test_ends_are_counted_by_form_and_outcome() -> None:
    figures = ProgramFigures()
    for reason in ("finished", "failed", "finished", "its quota is spent", ENGINE_WAS_LOST):
        close(figures, FIRST, reason)
    for reason in ("finished", LAST_CALL, ENDED_BY_CLIENT, "ended early: too many are open"):
        close(figures, SECOND, reason, form="session")
    assert figures.ended() == {
        ("inferlet", "finished"): 2,
        ("inferlet", "failed"): 1,
        ("inferlet", "terminated"): 1,
        ("inferlet", "engine_lost"): 1,
        ("session", "finished"): 2,
        ("session", "cancelled"): 1,
        ("session", "terminated"): 1,
    }


async def test_a_session_that_is_used_no_more_was_not_terminated(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start_node(fake_config())
    session, _ = node.create_session(TENANT, "one", idle_ttl_s=5)
    session.enter()
    table = node._parts.sessions
    used_s = table._loop_time()
    monkeypatch.setattr(table, "_loop_time", lambda: used_s + 60)
    table._end_idle()
    await until(node, lambda: node.statistics().ended_programs != {})
    assert node.statistics().ended_programs == {("session", "idle"): 1}


def test_guests_have_the_time_of_all_and_the_memory_of_the_largest() -> None:
    first, second, untold = GuestSpent(), GuestSpent(), GuestSpent()
    first.cpu_s, first.memory_bytes = 0.5, 200
    second.cpu_s, second.memory_bytes = 0.25, 100
    used = with_guest(ResourceUsage(), [first, second, untold])
    assert used == ResourceUsage(guest_cpu_s=0.75, guest_memory_bytes=200)
    assert with_guest(ResourceUsage(), [untold]) == ResourceUsage()


async def test_a_program_that_was_refused_leaves_nothing(start_node: StartNode) -> None:
    @inferlet(traits={Trait.ENCODE: 1})
    async def wanting(api: Api) -> None: ...

    node = await start_node(fake_config())
    with pytest.raises(TraitMissing):
        node.launch(wanting, tenant=TENANT)
    assert node.statistics().ended_programs == {("inferlet", "refused"): 1}
