"""Programs that make way between two calls for a better one, which waits outside for room."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from types import MappingProxyType
from typing import Any

import pytest
from control_agents import Agents

from quire.control.policies.quire import LeastLeft
from quire.core.config import TenantConfig
from quire.core.ids import TenantId
from quire.core.policy import ReadyCommand
from quire.core.scheduler_config import LevelsConfig

PRICED = 40
"""Tokens of the elder's prompt, which take a message of 10 ms. So the engine computes what fits
into 64 blocks in 64 ms, and whoever is let in stays for 128 ms."""
STAYED_S = 0.2
NO_FIELDS: Mapping[int, dict[str, Any]] = MappingProxyType({})


def full(
    of: Mapping[int, dict[str, Any]] = NO_FIELDS,
    *,
    num_tokens: int = 28,
    num_before: int = 0,
    in_turns: bool = False,
    **more: Any,
) -> Agents:
    """Agent 4 has come with ``num_tokens`` and is put out again; agents 2 and 3 have what is left
    of 24 blocks. ``of``: the fields of their programs. ``in_turns``: one calls after the other.
    ``num_before``: of tenant u so many programs have come and ended before."""
    agents = Agents(**{"prompt": PRICED, **more})
    for agent in range(6, 6 + num_before):
        agents.turn(agent, 40, tenant="u")
        agents.end(agent)
    agents.call(4, num_tokens, **of.get(4, {}))
    agents.settle()
    for num_more in (12, 12, 4):
        for agent in (2, 3):
            agents.call(agent, num_more, **of.get(agent, {}))
            if in_turns:
                agents.settle()
        agents.settle()
    return agents


def stayed(of: Mapping[int, dict[str, Any]] = NO_FIELDS, **more: Any) -> Agents:
    """Agents 2 and 3 have been there for so long that they may have to make way, and call. Agent 4
    calls behind them, and waits outside."""
    return outside(full(of, **more))


def outside(agents: Agents) -> Agents:
    agents.world.harness.clock.advance(STAYED_S)
    for _ in range(20):  # the elder's tenant has had most of the engine
        agents.step()
    for agent in (2, 3):
        agents.call(agent, 0)
    agents.step()
    agents.call(4, 0)
    agents.step()
    assert [agents.is_paused(agent) for agent in (2, 3)] == [False, False]
    return agents


def who_is_paused_after_another_call(agents: Agents, *callers: int) -> list[int]:
    """Step until ``callers`` are answered; they call again at once. Nobody else has made way."""
    num_pauses = agents.world.figures.num_pauses
    while any(agent in agents.calls for agent in callers):
        agents.step()
    for agent in callers:
        agents.call(agent, 0)
    agents.step()  # who makes way does, and in the next message the first goes on
    agents.step()
    paused = [agent for agent in agents.calls if agents.is_paused(agent)]
    assert agents.world.figures.num_pauses == num_pauses + len({*callers} & {*paused})
    return paused


IMPORTANT = {"priority": 1}


def test_one_of_a_higher_priority_takes_the_place_of_who_has_stayed() -> None:
    agents = stayed({4: IMPORTANT})
    assert who_is_paused_after_another_call(agents, 2, 3) == [3]
    agents.end(4)
    agents.calls.pop(4, None)
    agents.settle()
    assert not agents.calls


def test_it_is_let_in_before_a_call_has_ended() -> None:
    agents = stayed({4: IMPORTANT})
    assert not agents.is_paused(4)
    assert {2, 3} < agents.calls.keys()
    assert agents.world.figures.num_paused == 0


def test_whoever_makes_way_goes_on_if_there_is_room_after_all() -> None:
    agents = stayed({4: IMPORTANT})
    agents.end(4)
    del agents.calls[4]
    assert who_is_paused_after_another_call(agents, 2, 3) == []


def test_a_call_without_room_is_looked_at_again_when_others_have_stayed() -> None:
    agents = full({4: IMPORTANT})
    for agent in (2, 3, 4):
        agents.call(agent, 0)
    agents.step()
    assert agents.is_paused(4)
    agents.world.harness.clock.advance(STAYED_S)
    agents.step()
    assert not agents.is_paused(4)
    assert {2, 3} < agents.calls.keys()


def test_nobody_makes_way_for_one_that_has_waited_long_outside() -> None:
    """It has waited for many times its service, but a promotion for one turn is not worth the
    contexts of the others."""
    agents = full(policy="quire", levels=LevelsConfig(beta=4.0, promoted_share=1.0))
    agents.call(4, 0)
    agents.step()
    agents.world.harness.clock.advance(STAYED_S)
    for agent in (2, 3):
        agents.call(agent, 0)
    agents.step()
    agents.step()
    assert agents.is_paused(4)


@pytest.mark.parametrize(
    ("level", "of_others", "paused"), [(9.0, 9.75, [4]), (8.75, 9.0, [3]), (8.75, inf, [3])]
)
def test_memory_goes_by_whole_levels(
    level: float, of_others: float, paused: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of a level is worth a seat, but not contexts that have to be computed again."""
    levels = {4: level}

    def key(policy: LeastLeft, command: ReadyCommand) -> tuple[float, ...]:
        return levels.get(command.program, of_others), command.arrival_s, command.program

    monkeypatch.setattr(LeastLeft, "key", key)
    agents = stayed(policy="quire", levels=LevelsConfig(beta=None))
    assert who_is_paused_after_another_call(agents, 2, 3) == paused


def test_those_that_are_held_make_no_way() -> None:
    agents = full({4: IMPORTANT})
    agents.world.harness.clock.advance(STAYED_S)
    for agent in (2, 3):
        agents.call(agent, 0)
    while agents.calls:
        agents.step()
    agents.call(4, 0)
    agents.step()
    assert agents.is_paused(4)


def test_whoever_others_make_way_for_goes_on_before_they_do() -> None:
    agents = stayed({4: IMPORTANT})
    assert who_is_paused_after_another_call(agents, 4) == []


def test_one_of_a_higher_priority_that_grows_leaves_room_to_who_has_just_come_in() -> None:
    agents = Agents(prompt=PRICED)
    for _ in range(2):
        agents.turn(2, 16)
        agents.turn(4, 12, **IMPORTANT)
    agents.call(2, 0)
    agents.step()
    agents.call(4, 28)
    agents.step()
    assert agents.is_paused(4)


def test_between_equals_who_is_let_in_goes_on() -> None:
    assert who_is_paused_after_another_call(stayed(), 2, 3) == [4]


def test_as_long_as_nobody_knows_what_it_costs_nobody_makes_way() -> None:
    agents = stayed({4: IMPORTANT}, prompt=1, in_turns=True)  # no message has 32 tokens of prompts
    assert who_is_paused_after_another_call(agents, 2, 3) == [4]


def test_nobody_makes_way_where_that_gives_too_little_room() -> None:
    """Agent 3 is as important as agent 4, which needs more than what agent 2 has and what is
    free."""
    agents = stayed({3: IMPORTANT, 4: IMPORTANT}, num_tokens=60)
    assert who_is_paused_after_another_call(agents, 2, 3) == [4]


def test_several_make_room_together() -> None:
    agents = stayed({4: IMPORTANT}, num_tokens=60)
    assert who_is_paused_after_another_call(agents, 2, 3) == [2, 3]


def one_is_new(**more: Any) -> Agents:
    """Agent 2 has been there for long and has 12 blocks, agent 5 has just come and has eight."""
    agents = full({4: IMPORTANT}, **more)
    agents.end(3)
    agents.world.harness.clock.advance(STAYED_S)
    agents.call(2, 0)
    agents.turn(5, 24)
    return agents


def test_whoever_has_just_come_in_goes_on() -> None:
    agents = one_is_new()
    for agent in (5, 2, 4):
        agents.call(agent, 0)
        agents.step()
    assert who_is_paused_after_another_call(agents, 5) == []


def test_what_they_have_is_not_counted_as_room_that_is_made() -> None:
    agents = one_is_new(num_tokens=60)
    for agent in (2, 5, 4):
        agents.call(agent, 0)
        agents.step()
    assert who_is_paused_after_another_call(agents, 5, 2) == [4]


OTHER = {"tenant": "u"}


def test_another_tenant_gets_memory_until_it_has_as_much() -> None:
    agents = stayed({4: OTHER})
    assert who_is_paused_after_another_call(agents, 2, 3) == [3]
    agents.call(4, 0)
    agents.world.harness.clock.advance(STAYED_S)
    assert who_is_paused_after_another_call(agents, 2) == [3], "nothing swings back"


@pytest.mark.parametrize(("priority", "paused"), [(1, [2, 3]), (-1, [4])])
def test_a_priority_that_counts_on_the_whole_node_goes_before_shares(
    priority: int, paused: list[int]
) -> None:
    fields = {"tenant": "u", "priority": priority}
    agents = stayed({4: fields}, num_tokens=60, priority_scope="node")
    assert who_is_paused_after_another_call(agents, 2, 3) == paused


def test_a_tenant_that_has_had_more_of_the_engine_waits() -> None:
    agents = stayed({4: OTHER}, num_before=5)
    assert who_is_paused_after_another_call(agents, 2, 3) == [4]


@pytest.mark.parametrize(("weight", "paused"), [(1.0, 4), (1.1, 4), (2.0, 3)])
def test_a_tenant_gets_memory_by_its_weight(weight: float, paused: int) -> None:
    """Agents 2 and 4 of the other tenant would have 20 blocks, agent 3 has 11."""
    tenants = (TenantConfig(id=TenantId("u"), weight=weight),)
    agents = stayed({2: OTHER, 4: OTHER}, tenants=tenants)
    assert who_is_paused_after_another_call(agents, 2, 3) == [paused]
