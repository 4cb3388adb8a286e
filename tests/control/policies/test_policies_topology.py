"""``topology`` and ``invocation``, on their own and through the schedulers of models and
encoders."""

from __future__ import annotations

from typing import Any

import pytest
from control_world import ENGINE, World
from encoding_world import MODEL as ENCODER
from encoding_world import EncodingWorld, encode_command

from quire.control import Controller
from quire.control.engines.builder import BatchBuilder
from quire.control.policies import create_policy
from quire.core.batch import Batch
from quire.core.calls import AskEncoder, SetQueueDepth
from quire.core.encoding import EncodeBatch
from quire.core.ids import ProgramId, QueueId
from quire.core.policy import Policy, ServiceFigures, StagedPolicy
from quire.core.scheduler_config import SchedulerConfig
from quire.testing.conformance import PolicySuite
from quire.testing.conformance.policy import ready
from quire.testing.harness import CommandOutcome


class TestTopology(PolicySuite):
    def make_policy(self) -> Policy:
        return create_policy("topology")


class TestCriticalPath(PolicySuite):
    def make_policy(self) -> Policy:
        return create_policy("critical_path")


class TestInvocation(PolicySuite):
    def make_policy(self) -> Policy:
        return create_policy("invocation")


def test_a_request_joins_its_invocation_while_one_of_it_waits() -> None:
    policy = create_policy("invocation")
    first = ready(1, invocation=3, arrival_s=0.0)
    alone = ready(2, arrival_s=1.0)
    joins = ready(3, invocation=3, arrival_s=2.0)
    other = ready(4, program=2, invocation=3, arrival_s=2.5)
    for command in (first, alone, joins, other):
        policy.on_arrival(command, command.arrival_s)
    assert policy.key(first) < policy.key(joins) < policy.key(alone) < policy.key(other)
    policy.on_ended(first, 3.0)
    policy.on_ended(joins, 3.0)
    late = ready(5, invocation=3, arrival_s=4.0)
    policy.on_arrival(late, 4.0)
    assert policy.key(other) < policy.key(late), "nobody was left to be joined"


def test_the_critical_path_is_that_of_time_and_the_oldest_query_goes_first() -> None:
    policy = create_policy("critical_path")
    assert isinstance(policy, StagedPolicy)
    long = ready(1, depth=1, remaining_us=900, arrival_s=5.0)
    short = ready(2, depth=7, remaining_us=100, arrival_s=4.0)
    assert policy.stage(long) < policy.stage(short)
    old, young = ServiceFigures(arrival_s=1.0), ServiceFigures(arrival_s=2.0)
    of_old = ready(3, program=2, remaining_us=1, arrival_s=9.0, program_figures=old)
    of_young = ready(4, program=1, remaining_us=1, arrival_s=3.0, program_figures=young)
    assert policy.key(of_old) < policy.key(of_young)


def test_without_profiles_a_querys_steps_go_by_depth_and_queries_by_age() -> None:
    policy = create_policy("critical_path")
    assert isinstance(policy, StagedPolicy)
    known = ready(1, invocation=1, remaining_us=900)
    deep, shallow = ready(2, invocation=2, depth=7), ready(3, invocation=3, depth=1)
    assert policy.stage(known) < policy.stage(deep) < policy.stage(shallow)
    old, young = ServiceFigures(arrival_s=1.0), ServiceFigures(arrival_s=2.0)
    last_of_old = ready(4, program=2, invocation=9, arrival_s=9.0, program_figures=old)
    of_young = ready(5, program=1, invocation=1, depth=3, arrival_s=3.0, program_figures=young)
    assert policy.key(last_of_old) < policy.key(of_young)


def test_a_program_without_a_graph_has_no_head_start() -> None:
    """An agent that began yesterday does not go first, nor does one that invents times."""
    policy = create_policy("critical_path")
    yesterday = ServiceFigures(arrival_s=0.0)
    asked = ready(1, program=2, arrival_s=90_000.0)
    for remaining_us in (0, -5):
        agent = ready(2, arrival_s=90_001.0, remaining_us=remaining_us, program_figures=yesterday)
        assert policy.key(asked) < policy.key(agent)
    inventing = ready(3, arrival_s=90_001.0 + 60, remaining_us=9, program_figures=yesterday)
    assert policy.key(asked) < policy.key(inventing)


# -- prompts of a model ----------------------------------------------------------------------------


def model_world(policy: str, **pool: int) -> World:
    config = SchedulerConfig(policy=policy, run_ahead=False, max_steps_per_message=1)
    return World(controller=Controller(config), num_blocks=256, **pool)


def prefill(
    world: World, program: int, queue: int, depth: int, invocation: int = 0
) -> CommandOutcome:
    """A prompt of four tokens; the first one is the queue's number."""
    world.queue(program, queue, depth=depth)
    if invocation:
        asked = SetQueueDepth(QueueId(queue), depth, invocation)
        world.harness.call(ProgramId(program), asked)
    pages = [10 * queue, 10 * queue + 1]
    tokens = [queue, 101, 102, 103]
    commands = (world.alloc(pages), world.decode(pages, tokens, 0, cache=False))
    return world.issue(program, *commands, queue=queue)[1]


def busy(world: World) -> CommandOutcome:
    """Keeps the engine busy until all have come."""
    world.program(9, queues=0)
    return prefill(world, 9, 1, 0)


def messages(world: World) -> list[list[int]]:
    """The queues whose prompts begin in each message but the first."""
    found = []
    for dispatch in world.harness.dispatched[1:]:
        assert isinstance(dispatch.batch, Batch)
        rows = dispatch.batch.forward
        if rows is not None:
            starts = rows.row_starts[:-1]
            found.append([int(token) for token in rows.tokens[starts] if token < 100])
    return found


FIGURE_7 = {"fcfs": [[2, 3], [4, 5]], "topology": [[2, 4], [3, 5]]}
"""A and B of query 1 are queues 2 and 3, G and H of query 2 are 4 and 5; two fit a message."""


@pytest.mark.parametrize("policy", FIGURE_7)
def test_figure_7_which_prompts_share_a_message(policy: str) -> None:
    world = model_world(policy, max_batch_tokens=8)
    busy(world)
    for program, queue, depth in ((1, 2, 2), (1, 3, 1), (2, 4, 2), (2, 5, 1)):
        if depth == 2:
            world.program(program, queues=0)
        prefill(world, program, queue, depth)
    world.run()
    assert messages(world) == FIGURE_7[policy]


def test_room_that_is_left_goes_to_the_next_depth() -> None:
    world = model_world("topology", max_batch_tokens=16)
    busy(world)
    for program in (1, 2):
        world.program(program, queues=0)
        for number, depth in enumerate((1, 3, 2), 2):
            prefill(world, program, 3 * program + number, depth)
    world.run()
    assert [sorted(one) for one in messages(world)] == [[6, 7, 9, 10], [5, 8]]


def test_a_program_without_a_graph_has_its_turn() -> None:
    """Deeper ones come behind it without end."""
    world = model_world("topology", max_batch_tokens=4)
    busy(world)
    world.program(1, queues=0)
    session = None
    for queue in range(2, 12):
        prefill(world, 1, queue, depth=queue)
        if queue == 3:
            world.program(2, queues=0)
            session = prefill(world, 2, 50, depth=0)
        world.harness.step()
    assert session is not None
    assert session.status == "done"
    world.run()


def test_each_message_begins_with_whoever_came_first() -> None:
    """Also behind one that took only the first program's deepest prompt."""
    world = model_world("topology", max_batch_tokens=4)
    busy(world)
    world.program(1, queues=0)
    world.program(2, queues=0)
    prefill(world, 1, 2, depth=1)
    prefill(world, 1, 3, depth=2)
    prefill(world, 2, 4, depth=0)
    world.run()
    assert messages(world) == [[3], [2], [4]]


def test_a_message_behind_the_one_in_flight_has_the_same_order() -> None:
    world = model_world("topology", max_batch_tokens=8)
    busy(world)
    for program in (1, 2):
        world.program(program, queues=0)
        prefill(world, program, 2 * program, depth=1)
        prefill(world, program, 2 * program + 1, depth=2)
    planner = world.controller._schedulers[ENGINE].planner
    builder = BatchBuilder(world.controller._engines[ENGINE].next_step, 8)
    planner.add_behind(builder, planner.prompts_to_come())
    assert [part.entry.queue.id for part in builder.parts] == [3, 5]


def test_requests_of_one_invocation_stay_together() -> None:
    def order(policy: str) -> list[list[int]]:
        world = model_world(policy, max_batch_tokens=8)
        busy(world)
        world.program(1, queues=0)
        world.program(2, queues=0)
        prefill(world, 1, 2, 0, invocation=1)
        world.harness.clock.advance(0.001)
        prefill(world, 2, 3, 0, invocation=1)
        world.harness.clock.advance(0.001)
        prefill(world, 1, 4, 0, invocation=1)
        world.run()
        return messages(world)

    assert order("fcfs") == [[2, 3], [4]]
    assert order("invocation") == [[2, 4], [3]]


# -- sequences of a model --------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "order"), [("fcfs", [2, 3, 4]), ("topology", [3, 4, 2])])
def test_sequences_go_to_the_deepest_of_each_program(policy: str, order: list[int]) -> None:
    """Two become free at once."""
    world = model_world(policy, max_sequences=2)
    for program in (1, 2, 9):
        world.program(program, queues=0)
    busy_ = prefill(world, 9, 1, 0)
    waiting = {2: decode(world, 1, 2, 1), 3: decode(world, 1, 3, 5), 4: decode(world, 2, 4, 0)}
    assert busy_.status == "pending"
    began: list[int] = []
    while world.harness.step():
        began += [queue for queue, one in waiting.items() if one.tokens and queue not in began]
    assert began == order


def test_one_sequence_goes_to_each_program_in_its_turn() -> None:
    world = model_world("topology", max_sequences=1)
    for program in (1, 2, 9):
        world.program(program, queues=0)
    prefill(world, 9, 1, 0)
    waiting = {2: decode(world, 1, 2, 1), 3: decode(world, 1, 3, 5), 4: decode(world, 2, 4, 0)}
    began: list[int] = []
    while world.harness.step():
        began += [queue for queue, one in waiting.items() if one.tokens and queue not in began]
    assert began == [3, 2, 4]


def decode(
    world: World, program: int, queue: int, depth: int, max_tokens: int = 6
) -> CommandOutcome:
    world.queue(program, queue, depth=depth)
    pages = [10 * queue + number for number in range(8)]
    prompt = [queue, 101, 102]
    commands = (world.alloc(pages), world.decode(pages, prompt, max_tokens, cache=False))
    return world.issue(program, *commands, queue=queue)[1]


# -- encoders --------------------------------------------------------------------------------------


def batches_of(policy: str, asked: list[dict[str, Any]]) -> list[list[int]]:
    """The first token of each request in each batch, of those that wait behind the first two."""
    world = EncodingWorld(policy=policy, max_batch_tokens=4)
    programs = {}
    for number in (1, 2, 9):
        programs[number] = world.program(number)
        world.harness.clock.advance(0.001)
    for number in (91, 92):
        world.harness.call(programs[9], AskEncoder(ENCODER, encode_command(number, [4])))
    for number, one in enumerate(asked, 1):
        command = encode_command(number, [2] * one.pop("num", 1), token=number)
        program = programs[one.pop("program")]
        world.harness.call(program, AskEncoder(ENCODER, command, **one))
        world.harness.clock.advance(0.001)
    world.harness.run_until_idle()
    batches = [one.batch for one in world.harness.dispatched[2:]]
    assert all(isinstance(one, EncodeBatch) for one in batches)
    return [one.tokens[::2].tolist() for one in batches if isinstance(one, EncodeBatch)]


def test_an_encoders_batch_has_the_deepest_of_each_query() -> None:
    def asked() -> list[dict[str, Any]]:
        return [
            {"program": 1, "depth": 2},
            {"program": 1, "depth": 1},
            {"program": 2, "depth": 2},
            {"program": 2, "depth": 1},
        ]

    assert batches_of("fcfs", asked()) == [[1, 2], [3, 4]]
    assert batches_of("topology", asked()) == [[1, 3], [2, 4]]


@pytest.mark.parametrize(
    ("policy", "order"), [("topology", [[1, 1], [2, 2]]), ("critical_path", [[2, 2], [1, 1]])]
)
def test_what_an_old_query_asks_last_goes_first_by_the_critical_path_alone(
    policy: str, order: list[list[int]]
) -> None:
    """A younger query's chunks came before the expanded queries of an older one; no engine has a
    profile."""
    asked = [
        {"program": 2, "depth": 3, "invocation": 1, "num": 2},
        {"program": 1, "depth": 2, "invocation": 2, "num": 2},
    ]
    assert batches_of(policy, asked) == order


def test_each_batch_of_an_encoder_begins_with_whoever_came_first() -> None:
    asked = [
        {"program": 1, "depth": 1, "num": 2},
        {"program": 1, "depth": 2, "num": 2},
        {"program": 2, "depth": 0, "num": 2},
    ]
    assert batches_of("topology", asked) == [[2, 2], [1, 1], [3, 3]]


def test_an_encoders_batches_keep_an_invocation_together() -> None:
    def asked() -> list[dict[str, Any]]:
        return [
            {"program": 1, "invocation": 5},
            {"program": 2, "invocation": 1},
            {"program": 1, "invocation": 5, "num": 2},
        ]

    assert batches_of("fcfs", asked()) == [[1, 2], [3, 3]]
    assert batches_of("invocation", asked()) == [[1, 3], [3, 2]]


def test_figure_4a_a_step_of_48_chunks_fills_three_batches() -> None:
    """One primitive's requests come as one call, so no batch waits for the answer of another."""
    world = EncodingWorld(policy="topology", max_batch_tokens=32)
    world.ask(world.program(1), *([2] * 48), depth=3)
    world.harness.run_until_idle()
    assert [len(lengths) for _, lengths in world.batches()] == [16, 16, 16]
