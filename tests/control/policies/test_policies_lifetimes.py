import pytest

from quire.control.policies.distribution import product_limit
from quire.control.policies.promotions import MAX_STALE, PAUSED_S, Promotions, RankedCall
from quire.core.ids import CommandId, ProgramId, QueueId, TenantId
from quire.core.policy import ReadyCommand, ServiceFigures


def test_chances_of_totals_beside_programs_that_go_on() -> None:
    """By hand: of 5 one ends at 1, of the 4 left two at 2, and one goes on at 3, so that 4 is the
    end of all that is left (Kaplan and Meier)."""
    found = product_limit([2.0, 1.0, 4.0, 2.0], [3.0])
    assert found.totals == [1.0, 2.0, 4.0]
    assert found.masses == pytest.approx([1 / 5, 4 / 5 * 2 / 4, 4 / 5 * 2 / 4])


def starving(family: ServiceFigures) -> RankedCall:
    """A call in the second queue, ready since 0."""
    command = ReadyCommand(
        program=ProgramId(1), tenant=TenantId("t"), queue=QueueId(1), command=CommandId(1),
        priority=0, depth=0, arrival_s=0.0, ready_s=0.0, service_tokens=0, num_tokens_next=1,
        family=ProgramId(1), family_figures=family, program_figures=family, thread_figures=family,
    )  # fmt: skip
    call = RankedCall(command)
    call.level = 1
    return call


def test_what_a_promoted_call_has_waited_itself_is_forgiven() -> None:
    """In two rounds of service and then until its promotion; what its family waited is not."""
    family = ServiceFigures(arrival_s=0.0)
    call = starving(family)
    command = call.command
    promotions = Promotions(beta=2.0, share=1.0)
    promotions.served(call, 1.0, 4.0)
    promotions.served(call, 1.0, 7.0)
    assert call.waited_s == 3.0 + 2.0
    command.ready_s, command.service_s = 7.0, 2.0
    family.service_s, family.waiting_s = 3.0, 6.0
    promotions.watch(call)
    assert promotions.take_due(6.9) == []
    assert promotions.take_due(8.0) == [call]
    assert call.forgiven_wait_s == 5.0 + 1.0
    assert call.forgiven_service_s == 2.0


def test_a_call_whose_family_was_served_meanwhile_is_promoted_later() -> None:
    family = ServiceFigures(arrival_s=0.0, service_s=3.0)
    call, promotions = starving(family), Promotions(beta=2.0, share=1.0)
    promotions.watch(call)
    family.service_s = 5.0
    assert promotions.take_due(2.0 * 3.0) == []
    assert promotions.take_due(9.9) == []
    assert promotions.take_due(2.0 * 5.0) == [call]


def test_a_newcomer_is_due_at_once_unless_it_counts_with_the_service_of_a_call() -> None:
    newcomer = starving(ServiceFigures())
    promotions = Promotions(beta=2.0, share=1.0)
    promotions.watch(newcomer)
    assert promotions.take_due(0.0) == [newcomer]
    newcomer = starving(ServiceFigures())
    promotions = Promotions(beta=2.0, share=1.0, counts_a_call=True)
    for _ in range(100):
        ended = starving(ServiceFigures())
        ended.command.service_s = 3.0
        promotions.ended(ended)
    promotions.watch(newcomer)
    assert promotions.take_due(5.9) == []
    assert promotions.take_due(6.0) == [newcomer]


def test_a_call_that_waits_outside_is_promoted_when_it_has_come_in() -> None:
    call = starving(ServiceFigures(service_s=3.0))
    promotions = Promotions(beta=2.0, share=1.0)
    promotions.watch(call)
    call.command.is_paused = True
    assert promotions.take_due(6.0) == []
    assert promotions.take_due(6.0 + PAUSED_S) == [], "it still waits there"
    call.command.is_paused = False
    assert promotions.take_due(6.0 + 2 * PAUSED_S - 0.1) == [], "it is not looked at all the time"
    assert promotions.take_due(6.0 + 2 * PAUSED_S) == [call]


@pytest.mark.parametrize("urgent_s", [6.0, 6.0 + PAUSED_S / 2])
def test_a_call_that_waits_outside_is_promoted_when_it_is_urgent(urgent_s: float) -> None:
    family = ServiceFigures(service_s=3.0, deadline_s=60.0)
    call = starving(family)
    call.urgent_s = urgent_s
    call.command.is_paused = True
    promotions = Promotions(beta=2.0, share=1.0)
    promotions.watch(call)
    if urgent_s > 6.0:
        assert promotions.take_due(6.0) == []
    assert promotions.take_due(urgent_s) == [call]


def test_calls_that_have_ended_do_not_pile_up() -> None:
    promotions = Promotions(beta=2.0, share=1.0)
    lives = [starving(ServiceFigures(service_s=100.0)) for _ in range(3)]
    for call in lives:
        promotions.watch(call)
    for _ in range(10 * MAX_STALE):
        call = starving(ServiceFigures(service_s=50.0))
        promotions.watch(call)
        promotions.ended(call)
    assert len(promotions._watched) <= MAX_STALE + 2 * len(lives)
    promotions.set_capacity(3)
    assert promotions.take_due(200.0) == lives
