"""The order of a service's requests, on which Ayo's Figure 7 is played."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

import pytest

from quire.control.policies import ProgramAttainedService, create_policy
from quire.control.scheduler.order.requests import RequestOrder
from quire.core.ids import CommandId, ProgramId, TenantId
from quire.core.policy import ReadyCommand
from quire.core.scheduler_config import LevelsConfig
from quire.testing.conformance.policy import ready

CHILDREN = {
    "A": ["D"], "D": ["E"], "B": ["E"], "E": [],
    "G": ["J"], "J": ["K"], "H": ["K"], "K": [],
}  # fmt: skip
"""Figure 7: A and B of one query, G and H of the other want the model; so do E and K. D and J run
elsewhere. E waits for B and for D, which waits for A."""

PARENTS = {node: [p for p, children in CHILDREN.items() if node in children] for node in CHILDREN}
ELSEWHERE = {"D": 1.0, "J": 1.0}
TIME_S = {1: 0.5, 2: 0.8}
"""Of one prompt of 512 tokens, and of two at once."""


def depth(node: str) -> int:
    return max((depth(child) + 1 for child in CHILDREN[node]), default=0)


def played(policy: str) -> Mapping[str, float]:
    """When each primitive ends, and how the model's batches were made."""
    order = RequestOrder(create_policy(policy), {})
    ends: dict[str, float] = {}
    names: dict[CommandId, str] = {}
    happening: list[tuple[float, list[str]]] = []
    is_busy = False

    def begin(node: str, now_s: float) -> None:
        if node in ELSEWHERE:
            heapq.heappush(happening, (now_s + ELSEWHERE[node], [node]))
            return
        number = len(names) + 1
        names[CommandId(number)] = node
        query = 1 if node in "ABE" else 2
        order.add(ready(number, program=query, depth=depth(node), arrival_s=now_s), now_s)

    def send(now_s: float) -> bool:
        batch = order.take(2, now_s)
        if batch:
            for one in batch:
                order.end(one, now_s)
            nodes = [names[one.command] for one in batch]
            heapq.heappush(happening, (now_s + TIME_S[len(batch)], nodes))
        return bool(batch)

    for node in "ABGH":
        begin(node, 0.0)
    is_busy = send(0.0)
    while happening:
        now_s, nodes = heapq.heappop(happening)
        ends.update(dict.fromkeys(nodes, now_s))
        for child in sorted({child for node in nodes for child in CHILDREN[node]}):
            if all(parent in ends for parent in PARENTS[child]):
                begin(child, now_s)
        is_busy = is_busy and nodes[0] in ELSEWHERE
        if not is_busy and (not happening or happening[0][0] > now_s):
            is_busy = send(now_s)
    order.check_invariants()
    return {node: round(end_s, 3) for node, end_s in ends.items()}


def test_figure_7_the_first_steps_of_both_queries_share_a_batch() -> None:
    blind, aware = played("fcfs"), played("topology")
    assert blind["A"] == blind["B"] == 0.8, "blind batching takes what came first"
    assert blind["G"] == blind["H"] == 1.6
    assert aware["A"] == aware["G"] == 0.8
    assert aware["B"] == aware["H"] == 1.6
    assert (blind["E"], blind["K"]) == (2.3, 3.1)
    assert aware["E"] == aware["K"] == 2.6, "both end with one batch"


def test_figure_4a_the_requests_of_one_step_fill_batches() -> None:
    """48 chunks, while a question of another query came between them."""
    order = RequestOrder(create_policy("invocation"), {})
    for number in range(1, 25):
        order.add(ready(number, program=1, invocation=3, arrival_s=0.0), 0.0)
    order.add(ready(1, program=2, arrival_s=0.5), 0.5)
    for number in range(25, 49):
        order.add(ready(number, program=1, invocation=3, arrival_s=1.0), 1.0)
    batches = [order.take(16, 2.0) for _ in range(4)]
    assert [{int(one.program) for one in batch} for batch in batches] == [{1}, {1}, {1}, {2}]
    assert not len(order)


@pytest.mark.parametrize("policy", ["fcfs", "topology", "invocation", "quire"])
def test_tenants_have_their_share_whatever_the_policy(policy: str) -> None:
    order = RequestOrder(create_policy(policy), {TenantId("b"): 3.0})
    for number in range(40):
        for tenant in ("a", "b"):
            order.add(of_tenant(number, tenant), 0.0)
    batch = order.take(20, 0.0)
    assert [one.tenant for one in batch].count(TenantId("b")) == 15
    order.check_invariants()


def of_tenant(number: int, tenant: str) -> ReadyCommand:
    command = ready(number, program=1 + (tenant == "b"), arrival_s=0.0)
    command.tenant = TenantId(tenant)
    return command


def test_a_request_that_is_withdrawn_is_not_taken() -> None:
    order = RequestOrder(create_policy("topology"), {})
    wanted, unwanted = ready(1), ready(2, program=2)
    order.add(wanted, 0.0)
    order.add(unwanted, 0.0)
    order.end(unwanted, 0.0)
    assert order.take(5, 0.0) == [wanted]
    order.end(wanted, 1.0)
    order.end_program(ProgramId(1), 1.0)
    assert not len(order)


def test_a_policy_that_changes_ranks_with_time_is_obeyed() -> None:
    """The first one has waited too long by then, and goes before what comes later."""
    levels = LevelsConfig(thresholds=(10,), beta=1.0, promoted_share=1.0)
    order = RequestOrder(ProgramAttainedService(levels), {})
    served = ready(1, program=1)
    served.family_figures.service_tokens, served.family_figures.service_s = 50, 1.0
    order.add(served, 0.0)
    order.add(ready(2, program=2, arrival_s=0.5), 0.5)
    assert [int(one.program) for one in order.take(1, 0.6)] == [2]
    order.add(ready(3, program=3, arrival_s=0.7), 0.7)
    assert not order.take(0, 5.0)
    order.add(ready(4, program=4, arrival_s=5.0), 5.0)
    assert [int(one.program) for one in order.take(3, 5.0)] == [3, 1, 4]
