"""Commands that name adapters: each runs with its own, and no page is mistaken for another's."""

from __future__ import annotations

import msgspec
import pytest
from control_world import ENGINE, World, alone

from quire.control.memory.prefix_index import PrefixIndex
from quire.core import commands as c
from quire.core.decoding import StopSpec
from quire.core.engine_info import AdapterInfo
from quire.core.errors import ConfigError
from quire.core.ids import TenantId
from quire.testing import (
    FakeEngine,
    ReferenceContext,
    expected_dist,
    expected_tokens,
    token_content,
)
from quire.testing.fake_engine import fake_pool
from quire.testing.harness import CommandOutcome

NAMES = ("formal", "brief")
USED = (None, "formal", "brief")
PROMPT = list(range(30, 43))


def world_of(**pool: int) -> World:
    return World(engine=FakeEngine(fake_pool(**pool), adapters=NAMES))


def expected(prompt: list[int], max_tokens: int, adapter: str | None) -> list[int]:
    index = -1 if adapter is None else NAMES.index(adapter)
    return expected_tokens(prompt, StopSpec(max_tokens=max_tokens), adapter=index)


def test_decodes_of_one_batch_run_with_their_own() -> None:
    world = world_of()
    outcomes = {}
    for program, adapter in enumerate(USED, start=1):
        world.program(program)
        decode = world.decode(range(8), PROMPT, 9, adapter=adapter)
        outcomes[adapter] = world.issue(program, world.alloc(range(8)), decode)[1]
    world.run()
    assert {adapter: one.tokens for adapter, one in outcomes.items()} == {
        adapter: expected(PROMPT, 9, adapter) for adapter in USED
    }
    assert outcomes[None].tokens == alone(PROMPT, 9)
    assert len({tuple(one.tokens) for one in outcomes.values()}) == 3


def test_the_prefix_index_never_crosses_adapters() -> None:
    world = world_of()
    program = 0
    for num_cached in (0, 12):
        for adapter in USED:
            program += 1
            world.program(program)
            decode = world.decode(range(8), PROMPT, 6, adapter=adapter)
            outcome = world.do(program, world.alloc(range(8)), decode)[1]
            assert outcome.chunks[0].num_cached_tokens == num_cached
            assert outcome.tokens == expected(PROMPT, 6, adapter)


def test_import_prefix_finds_the_pages_of_its_adapter() -> None:
    world = world_of()
    world.program(1)
    world.do(1, world.alloc(range(8)), world.decode(range(8), PROMPT, 2, adapter="formal"))
    for number, (adapter, num_tokens) in enumerate(((None, 0), ("brief", 0), ("formal", 12))):
        pages = list(range(20 + 3 * number, 23 + 3 * number))
        command = c.ImportPrefix(id=world.id(), tokens=PROMPT, pages=pages, adapter=adapter)
        assert world.do(1, command)[0].reply.num_tokens == num_tokens


def test_root_keys_follow_the_weights_of_the_adapter() -> None:
    tenant = TenantId("t")
    old, new = PrefixIndex("m", 2, ["a1"]), PrefixIndex("m", 2, ["a2"])
    assert old.root_key(tenant) == new.root_key(tenant)
    assert old.root_key(tenant, 0) != new.root_key(tenant, 0)
    assert old.root_key(tenant, 0) != old.root_key(tenant)


@pytest.mark.parametrize("num_host_blocks", [0, 64])
@pytest.mark.parametrize("page_size", [1, 4])
def test_preempted_and_dropped_pages_come_back_with_their_adapter(
    num_host_blocks: int, page_size: int
) -> None:
    num_blocks = 48 // page_size
    world = world_of(num_blocks=num_blocks, num_host_blocks=num_host_blocks, page_size=page_size)
    pages = range(-(-24 // page_size))
    running = {}
    for program in range(1, 8):
        adapter, prompt = USED[program % 3], [program, *range(50, 58)]
        world.program(program)
        decode = world.decode(pages, prompt, 12, adapter=adapter)
        running[program] = (world.issue(program, world.alloc(pages), decode)[1], prompt, adapter)
    world.run()
    for program, (outcome, prompt, adapter) in running.items():
        assert outcome.tokens == expected(prompt, 12, adapter)
        known = prompt + outcome.tokens
        decode = world.decode(pages, known[-1:], 3, position=20, adapter=adapter)
        assert world.do(program, decode)[0].tokens == expected(known, 3, adapter)
    pool = world.pool
    assert pool.num_swapped_out or pool.num_dropped, "the pool was large enough for all of them"


def test_after_the_loss_of_the_engine_pages_are_computed_with_their_adapter() -> None:
    world = world_of()
    world.program(1)
    decode = world.decode(range(8), PROMPT, 4, adapter="brief")
    first = world.do(1, world.alloc(range(8)), decode)[1]
    world.harness.lose_engine(ENGINE)
    world.harness.start_engine(ENGINE, FakeEngine(fake_pool(), adapters=NAMES))
    known = PROMPT + first.tokens
    decode = world.decode(range(8), known[-1:], 5, position=len(known) - 1, adapter="brief")
    assert world.do(1, decode)[0].tokens == expected(known, 5, "brief")


def test_an_engine_that_comes_back_with_other_adapters_is_refused() -> None:
    world = world_of()
    world.harness.lose_engine(ENGINE)
    with pytest.raises(ConfigError, match="adapters"):
        world.harness.start_engine(ENGINE, FakeEngine(fake_pool(), adapters=["brief", "formal"]))


def info(name: str, digest: str | None = None, problem: str = "") -> AdapterInfo:
    """Of ``FakeEngine``, unless it is said otherwise."""
    digest = f"fake-{name}" if digest is None else digest
    return AdapterInfo(name=name, digest=digest, rank=1, problem=problem)


GONE = info("formal", digest="", problem="/adapters/formal is not there")


def start_again(world: World, *adapters: AdapterInfo, content: str = "fake-1") -> None:
    engine = FakeEngine(world.engine.info.pool, adapters=adapters)
    engine._info = msgspec.structs.replace(engine.info, content=content)
    world.harness.start_engine(ENGINE, engine)


def lost_with_answers_begun() -> tuple[World, dict[int, CommandOutcome]]:
    """The engine is lost when decodes with "formal" and without it have been preempted, each with
    tokens told: these go on with the next engine."""
    for num_steps in range(1, 100):
        world, running = world_of(num_blocks=12, page_size=4), {}
        for program in range(1, 9):
            world.program(program)
            decode = world.decode(range(6), begin_of(program), 12, adapter=adapter_of(program))
            running[program] = world.issue(program, world.alloc(range(6)), decode)[1]
        for _ in range(num_steps):
            world.harness.step()
        world.harness.lose_engine(ENGINE)
        begun = {
            program: outcome
            for program, outcome in running.items()
            if outcome.status == "pending" and outcome.tokens
        }
        used = {adapter_of(program) for program in begun}
        if "formal" in used and len(used) > 1:
            return world, begun
    raise AssertionError("the pool is large enough for all of them")


def begin_of(program: int) -> list[int]:
    return [program, *range(50, 58)]


def adapter_of(program: int) -> str | None:
    return USED[program % 3]


def check_ends(world: World, begun: dict[int, CommandOutcome], why: str) -> None:
    """Of ``begun`` those with "formal" have ended with ``why``, the others with their answers."""
    world.run()
    for program, outcome in begun.items():
        adapter = adapter_of(program)
        if adapter != "formal":
            assert outcome.tokens == expected(begin_of(program), 12, adapter)
            continue
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.retriable) == ("engine_lost", True)
        assert why in outcome.error.message


def test_an_answer_that_has_begun_does_not_go_on_with_other_weights() -> None:
    world, begun = lost_with_answers_begun()
    start_again(world, info("formal", digest="trained anew"), info("brief"))
    check_ends(world, begun, "the weights of adapter 'formal' have changed: retry")
    world.program(9)
    decode = world.decode(range(6), PROMPT, 4, adapter="formal")
    assert world.do(9, world.alloc(range(6)), decode)[1].tokens == expected(PROMPT, 4, "formal")


def test_without_an_adapter_that_is_gone_the_others_go_on() -> None:
    world, begun = lost_with_answers_begun()
    start_again(world, GONE, info("brief"))
    check_ends(world, begun, GONE.problem)
    world.program(9)
    decode = world.decode(range(6), PROMPT, 4, adapter="formal")
    refused = world.do(9, world.alloc(range(6)), decode)[1].error
    assert refused is not None
    assert refused.code == "invalid_argument"
    assert GONE.problem in refused.message


def test_a_model_with_other_weights_ends_all_that_has_begun() -> None:
    world, begun = lost_with_answers_begun()
    start_again(world, info("formal"), info("brief"), content="fake-2")
    world.run()
    errors = [outcome.error for outcome in begun.values()]
    assert {error.code for error in errors if error is not None} == {"engine_lost"}
    assert None not in errors


def test_pages_of_an_adapter_that_is_gone_are_lost_and_not_computed_without_it() -> None:
    world = world_of()
    world.program(1)
    world.do(1, world.alloc(range(8)), world.decode(range(8), PROMPT, 4, adapter="formal"))
    world.harness.lose_engine(ENGINE)
    start_again(world, GONE, info("brief"))
    known = [*PROMPT, *expected(PROMPT, 4, "formal")]
    decode = world.decode(range(8), known[-1:], 2, position=len(known) - 1)
    error = world.do(1, decode)[0].error
    assert error is not None
    assert error.code == "page_lost"
    assert GONE.problem in error.message


def test_a_page_that_two_adapters_wrote_is_no_prefix_of_either() -> None:
    """Two tokens by one adapter, two by another: right for whoever holds it, unknown to others."""
    world = world_of()
    world.program(1)
    world.do(
        1,
        world.alloc([0]),
        world.alloc_embeds(range(5)),
        world.embed(range(4), PROMPT[:4]),
        world.forward([], [0, 1], [0], adapter="formal"),
        world.forward([0], [2, 3], [0], [4], adapter="brief"),
    )
    dists = world.do(1, c.GetNextDist(id=world.id(), embeds=[4], top_k=5))[0].reply.dists
    context, _ = ReferenceContext().run_tokens(PROMPT[:2], adapter=0)
    _, hidden = context.run([token_content(t) for t in PROMPT[2:4]], (2, 3), adapter=1)
    wanted = expected_dist(hidden[-1], world.engine.info.vocab_size, 5)
    assert dists[0].token_ids == wanted.token_ids
    for program, adapter in enumerate(USED, start=2):
        world.program(program)
        decode = world.decode(range(4), PROMPT[:6], 3, adapter=adapter)
        outcome = world.do(program, world.alloc(range(4)), decode)[1]
        assert outcome.chunks[0].num_cached_tokens == 0
        assert outcome.tokens == expected(PROMPT[:6], 3, adapter)


def test_an_adapter_that_the_engine_lacks_is_refused_when_issued() -> None:
    world = world_of()
    world.program(1)
    world.do(1, world.alloc(range(4)), world.alloc_embeds([0]), world.embed([0], [7]))
    commands = [
        world.decode(range(4), PROMPT, 2, adapter="formel"),
        world.forward([], [0], [0], adapter="formel"),
        c.ImportPrefix(id=world.id(), tokens=PROMPT, pages=[50, 51, 52, 53], adapter="formel"),
    ]
    for number, command in enumerate(commands, start=2):
        world.queue(1, number)
        outcome = world.issue(1, command, queue=number)[0]
        assert outcome.error is not None
        assert "no adapter 'formel'; it has formal, brief" in outcome.error.message
