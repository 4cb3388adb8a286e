"""Vertical and horizontal batching (Pie 5.2), dispatch policies, order and fairness."""

from __future__ import annotations

import pytest
from control_world import World, alone

from benchmarks.pie.dispatch_policies import K_ONLY_PATIENCE_S, Eager, KOnly, TOnly
from quire.control.scheduler.dispatch import Adaptive
from quire.control.scheduler.order.fairness import FairShare
from quire.control.scheduler.timing.step_time import DecodeStepTime
from quire.core import commands as c
from quire.core.batch import Batch, WriteEntries
from quire.core.calls import SetQueuePriority
from quire.core.config import TenantConfig
from quire.core.errors import ConfigError
from quire.core.ids import ProgramId, QueueId, TenantId
from quire.testing.conformance import DispatchPolicySuite, PolicySuite


def batches(world: World) -> list[Batch]:
    return [dispatch.batch for dispatch in world.harness.dispatched]


def num_rows(batch: Batch) -> int:
    return 0 if batch.forward is None else len(batch.forward.tables)


def prepared(world: World, queues: int) -> None:
    """One program with embeds 10*q.. written and pages 10*q.. allocated on every queue q."""
    world.program(1, queues=queues)
    for queue in range(1, queues + 1):
        own = range(10 * queue, 10 * queue + 8)
        world.do(1, world.alloc(own), world.alloc_embeds(own), queue=queue)
        world.do(1, world.embed(own, range(8)), queue=queue)
    world.harness.dispatched.clear()


def test_figure_4_three_forwards_of_two_queues_and_two_embeds_of_two_others() -> None:
    world = World()
    prepared(world, 5)
    busy = world.issue(1, world.embed([50], [1]), queue=5)  # the engine is busy meanwhile
    world.issue(1, world.forward([], [10], [10]), queue=1)
    world.issue(1, world.forward([], [20], [20]), world.forward([20], [21], [21]), queue=2)
    world.issue(1, world.embed([30], [5]), world.forward([], [30], [30]), queue=3)
    world.issue(1, world.embed([40], [6]), queue=4)
    world.run()
    assert busy[0].status == "done"
    first, second = batches(world)
    assert first.embeds is not None
    assert len(first.embeds.tokens) == 1
    assert second.embeds is not None
    assert len(second.embeds.tokens) == 2, "horizontal: queues 3 and 4"
    assert num_rows(second) == 4, "vertical: both of queue 2; behind its embed: that of queue 3"


def test_a_forward_that_needs_the_output_of_the_one_before_waits_for_the_next_message() -> None:
    world = World()
    prepared(world, 1)
    outcomes = world.do(
        1,
        world.forward([], [10], [10], [15]),
        world.forward([10], [15], [11]),
        world.sample([15]),
    )
    assert [outcome.status for outcome in outcomes] == ["done"] * 3
    assert [num_rows(batch) for batch in batches(world)] == [1, 1]


def test_embedding_again_what_a_forward_of_the_message_reads_waits() -> None:
    world = World()
    prepared(world, 1)
    outcomes = world.do(
        1,
        world.forward([], [10], [10], [15]),
        world.sample([15], 1),
        world.embed([10], [7], 1),
        world.forward([10], [10], [10], [15]),
        world.sample([15], 2),
    )
    assert len(batches(world)) == 2
    assert outcomes[1].reply.token_ids == alone([0], 1)
    assert outcomes[4].reply.token_ids == alone([0, 7], 1)


def test_a_split_prefill_on_one_queue_equals_one_forward() -> None:
    """Pie 4.2, lines 1-3 against 6-7: two forwards, batched together."""
    world = World()
    prepared(world, 1)
    outcomes = world.do(
        1,
        world.forward([], range(10, 14), [10, 11]),
        world.forward([10, 11], range(14, 18), [10, 11], [17]),
        world.sample([17], 8),
    )
    assert len(batches(world)) == 1
    assert outcomes[2].reply.token_ids == alone(range(8), 1)


def test_page_tables_are_sent_as_changes() -> None:
    world = World(config={"run_ahead": False})
    world.program()
    prompt = range(40)
    pages = range(12)
    world.do(1, world.alloc(pages), world.alloc_embeds(range(41)))
    world.do(1, world.embed(range(40), prompt), world.forward([], range(40), pages))
    world.harness.dispatched.clear()
    world.do(1, world.embed([0], [9], 40), world.forward(pages, [0], pages))
    world.do(1, world.embed([0], [9], 41), world.forward(pages, [0], pages))
    writes = [op for b in batches(world) for op in b.operations if isinstance(op, WriteEntries)]
    assert [write.entries.tolist() for write in writes] == [[10], [10]]
    assert writes[0].tables.tolist() == writes[1].tables.tolist()


def test_a_loop_on_one_page_keeps_one_table() -> None:
    world = World(page_size=16)
    world.program()
    world.do(1, world.alloc([0]), world.alloc_embeds([0]))
    for position in range(6):
        embed = world.embed([0], [position], position)
        world.do(1, embed, world.forward([0], [0], [0], [0]))
    assert world.figures.num_tables == 1


def test_prefill_chunks_fill_what_decodes_leave_of_the_budget() -> None:
    world = World(max_batch_tokens=6, config={"run_ahead": False})
    world.program(1)
    world.program(2)
    first = world.issue(1, world.alloc(range(8)), world.decode(range(8), [1, 2], 20))[1]
    world.harness.step_engine("fake")
    second = world.issue(2, world.alloc(range(8)), world.decode(range(8), range(17), 3))[1]
    world.harness.dispatched.clear()
    world.run()
    mixed = [b for b in batches(world) if b.forward is not None]
    assert [len(b.forward.tokens) for b in mixed] == [5, 5, 5, 2]
    assert all(b.advance is not None for b in mixed)
    assert all(b.num_steps == 1 for b in mixed), "one step while prompts are being chunked"
    assert first.tokens == alone([1, 2], 20)
    assert second.tokens == alone(range(17), 3)


def test_a_prompt_that_comes_later_is_computed_in_chunks_as_short_as_a_step() -> None:
    """A fake step takes 1.1 ms and a prompt token 0.1 ms, so 0.8 steps are less than the least."""
    world = World(max_batch_tokens=64, config={"run_ahead": False, "max_steps_per_message": 1})
    world.program(1)
    world.program(2)
    first = world.issue(1, world.alloc(range(40)), world.decode(range(40), range(40), 30))[1]
    for _ in range(4):
        world.harness.step_engine("fake")
    second = world.issue(2, world.alloc(range(40)), world.decode(range(40), range(100, 150), 3))[1]
    world.harness.dispatched.clear()
    world.run()
    assert [len(b.forward.tokens) for b in batches(world) if b.forward] == [16, 16, 16, 2]
    assert first.tokens == alone(range(40), 30)
    assert second.tokens == alone(range(100, 150), 3)


def test_prompts_of_one_message_are_all_found_by_others() -> None:
    world = World(page_size=4)
    prompts = {number: [number] * 8 for number in (1, 2, 3)}
    for number, prompt in prompts.items():
        world.program(number)
        world.issue(number, world.alloc(range(4)), world.decode(range(4), prompt, 1))
    world.run()
    assert [num_rows(batch) for batch in batches(world) if batch.forward] == [1, 2]
    for prompt in prompts.values():
        find = c.ImportPrefix(id=world.id(), tokens=[*prompt, 9], pages=[90, 91])
        assert world.do(1, find, world.dealloc([90, 91]))[0].reply.num_tokens == 8


def test_prompts_that_come_together_are_computed_in_whole_budgets() -> None:
    world = World(max_batch_tokens=64, config={"run_ahead": False, "max_steps_per_message": 1})
    for number in (1, 2, 3):
        world.program(number)
    for number in (1, 2, 3):
        prompt = range(60 * number, 60 * number + 48)
        world.issue(number, world.alloc(range(40)), world.decode(range(40), prompt, 9))
    world.run()
    assert [len(b.forward.tokens) for b in batches(world) if b.forward] == [48, 63, 33]


def test_a_forward_too_long_for_what_decodes_leave_goes_first_the_next_time() -> None:
    world = World(max_batch_tokens=6, config={"run_ahead": False})
    world.program(1)
    world.issue(1, world.alloc(range(20)), world.decode(range(20), [1, 2], 60))
    world.harness.step_engine("fake")
    world.program(2)
    embeds = range(6)
    outcomes = world.issue(
        2,
        world.alloc_embeds(embeds),
        world.embed(embeds, range(6)),
        world.forward([], embeds, [], [5]),
    )
    for _ in range(4):
        world.harness.step_engine("fake")
    assert outcomes[2].status == "done", "decodes do not starve what cannot be split"
    world.run()


def test_queue_priority_goes_before_arrival() -> None:
    world = World(max_batch_tokens=4)
    prepared(world, 3)
    world.harness.call(ProgramId(1), SetQueuePriority(QueueId(3), 1))
    world.issue(1, world.embed([10], [1]), queue=1)
    low = world.issue(1, world.forward([], range(20, 24), [20], []), queue=2)
    high = world.issue(1, world.forward([], range(30, 34), [30], []), queue=3)
    world.harness.step_engine("fake")
    world.harness.step_engine("fake")
    assert (low[0].status, high[0].status) == ("pending", "done")
    world.run()


def test_eager_sends_one_command_per_message_and_k_only_waits_for_k() -> None:
    for dispatch, sizes in ((Eager(), [1, 1, 1]), (KOnly(3), [3])):
        world = World(config={"dispatch": dispatch})
        world.program(1, queues=3)
        world.do(1, world.alloc_embeds(range(3)))
        for queue in (1, 2, 3):
            world.issue(1, world.embed([queue - 1], [queue]), queue=queue)
        world.run()
        assert [len(b.embeds.tokens) for b in batches(world) if b.embeds] == sizes


def test_t_only_waits_for_its_time_and_k_only_for_its_patience() -> None:
    for dispatch, wait_s in ((TOnly(0.25), 0.25), (KOnly(8), K_ONLY_PATIENCE_S)):
        world = World(config={"dispatch": dispatch})
        world.program()
        world.do(1, world.alloc_embeds([0]))
        start_s = world.harness.now_s
        (outcome,) = world.issue(1, world.embed([0], [1]))
        assert not batches(world)
        world.harness.fire_timer()
        assert world.harness.now_s == start_s + wait_s
        assert len(batches(world)) == 1
        world.run()
        assert outcome.status == "done"


def test_unknown_policies_are_refused() -> None:
    with pytest.raises(ConfigError, match="choose from"):
        World(config={"policy": "best"})
    with pytest.raises(ConfigError, match="weight"):
        World(tenants=(TenantConfig(TenantId("t"), weight=0.0),))


def test_round_robin_gives_every_program_its_turn() -> None:
    world = World(max_batch_tokens=4, config={"policy": "round_robin", "run_ahead": False})
    for program in (1, 2):
        world.program(program)
        world.do(program, world.alloc(range(8)))
    outcomes = [
        world.issue(p, world.decode(range(8), range(100 * p, 100 * p + 12), 1))[0] for p in (1, 2)
    ]
    world.run()
    starts = [int(b.forward.tokens[0]) for b in batches(world) if b.forward is not None]
    assert starts == [100, 200, 104, 204, 108, 208]
    assert all(outcome.status == "done" for outcome in outcomes)


def test_tenants_share_by_weight_and_idleness_earns_no_credit() -> None:
    share = FairShare({TenantId("a"): 3.0})
    served: list[str] = []
    for _ in range(8):
        items = [("a", i) for i in range(4)] + [("b", i) for i in range(4)]
        for name, _number in share.ordered(items, lambda x: TenantId(x[0]), lambda x: (x[1],)):
            share.charge(TenantId(name), 6)
            served.append(name)
            break
    assert served.count("a") == 6
    assert served.count("b") == 2
    late = [("c", 0), ("b", 0), ("a", 0)]
    order = []
    for name, _number in share.ordered(late * 4, lambda x: TenantId(x[0]), lambda x: (x[1],)):
        share.charge(TenantId(name), 6)
        order.append(name)
    assert order[:4] != ["c"] * 4, "a newcomer does not catch up on what it never asked for"


def test_step_time_fits_the_quantum() -> None:
    time = DecodeStepTime(quantum_s=0.005, max_steps=32)
    assert time.num_steps() == 1
    time.observe(0.004, 4)
    assert time.num_steps() == 5
    for _ in range(60):
        time.observe(0.02, 1)
    assert time.num_steps() == 1
    fast = DecodeStepTime(quantum_s=0.005, max_steps=32)
    fast.observe(1e-6, 1)
    assert fast.num_steps() == 32


def test_a_lone_decode_takes_many_steps_per_message() -> None:
    world = World(config={"step_quantum_s": 1.0, "max_steps_per_message": 16})
    world.program()
    decode = world.do(1, world.alloc(range(32)), world.decode(range(32), [1, 2, 3], 100))[1]
    assert decode.tokens == alone([1, 2, 3], 100)
    assert len(batches(world)) < 20


def test_a_thousand_idle_programs_are_not_looked_at() -> None:
    world = World()
    world.harness.shell.check = False
    for program in range(2, 1002):
        world.program(program)
    world.program(1)
    table = world.controller._table

    class Watched(dict):  # type: ignore[type-arg]
        def values(self):  # type: ignore[no-untyped-def]
            raise AssertionError("a step looks at every program")

        __iter__ = items = values

    table._programs = Watched(table._programs)
    decode = world.do(1, world.alloc(range(8)), world.decode(range(8), [1, 2, 3], 20))[1]
    assert decode.status == "done"


class TestFcfs(PolicySuite):
    def make_policy(self):  # type: ignore[no-untyped-def]
        from quire.control.policies import create_policy

        return create_policy("fcfs")


class TestRoundRobin(PolicySuite):
    def make_policy(self):  # type: ignore[no-untyped-def]
        from quire.control.policies import create_policy

        return create_policy("round_robin")


class TestAdaptive(DispatchPolicySuite):
    def make_policy(self):  # type: ignore[no-untyped-def]
        return Adaptive()


class TestEager(DispatchPolicySuite):
    def make_policy(self):  # type: ignore[no-untyped-def]
        return Eager()


class TestKOnly(DispatchPolicySuite):
    def make_policy(self):  # type: ignore[no-untyped-def]
        return KOnly(4)


class TestTOnly(DispatchPolicySuite):
    def make_policy(self):  # type: ignore[no-untyped-def]
        return TOnly(0.01)
