"""The main line: allocate, run, sample, decode; both tiers give the same tokens."""

from __future__ import annotations

from control_world import GREEDY, World, alone

from quire.core.decoding import DecodeChunk, SamplerSpec

PROMPT = list(range(10, 23))


def test_the_fine_tier_and_decode_give_the_same_tokens() -> None:
    world = World()
    world.program()
    n, pages = len(PROMPT), range(10)
    outcomes = world.do(
        1,
        world.alloc(pages),
        world.alloc_embeds(range(n)),
        world.embed(range(n), PROMPT),
        world.forward([], range(n), pages, [n - 1]),
        world.sample([n - 1], n),
    )
    tokens = list(outcomes[-1].reply.token_ids)
    while len(tokens) < 15:
        position = n + len(tokens) - 1
        outcomes = world.do(
            1,
            world.embed([0], [tokens[-1]], position),
            world.forward(pages, [0], pages, [0]),
            world.sample([0], position + 1),
        )
        tokens += outcomes[-1].reply.token_ids
    assert tokens == alone(PROMPT, 15)


def test_a_long_prompt_is_run_in_chunks_under_the_token_budget() -> None:
    prompt = [(7 * i) % 200 for i in range(50)]
    world = World(max_batch_tokens=8)
    world.program()
    decode = world.do(1, world.alloc(range(15)), world.decode(range(15), prompt, 5))[1]
    assert decode.tokens == alone(prompt, 5)
    sizes = [len(d.batch.forward.tokens) for d in world.harness.dispatched if d.batch.forward]
    assert sizes == [8] * 6 + [2]


def test_oversubscription_slows_down_and_changes_no_token() -> None:
    world = World(num_blocks=16, num_host_blocks=64, max_batch_tokens=16)
    decodes = {}
    for program in range(1, 9):
        world.program(program, tenant=f"t{program % 2}")
        outcomes = world.issue(
            program, world.alloc(range(12)), world.decode(range(12), [program, *PROMPT], 30)
        )
        decodes[program] = outcomes[1]
    world.run()
    assert world.figures.num_preemptions > 0
    for program, decode in decodes.items():
        assert decode.status == "done", decode
        assert decode.tokens == alone([program, *PROMPT], 30)


def test_the_first_chunk_reports_the_seed_that_control_picked() -> None:
    world = World()
    world.program()
    sampler = SamplerSpec(greedy=False)
    decode = world.do(1, world.alloc(range(8)), world.decode(range(8), PROMPT, 6, sampler=sampler))[
        1
    ]
    assert isinstance(decode.chunks[0].seed, int)
    assert [chunk.seed for chunk in decode.chunks[1:]] == [None] * (len(decode.chunks) - 1)
    again = World()
    again.program()
    sampler = SamplerSpec(greedy=False, seed=decode.chunks[0].seed)
    repeated = again.do(
        1, again.alloc(range(8)), again.decode(range(8), PROMPT, 6, sampler=sampler)
    )[1]
    assert repeated.tokens == decode.tokens


def test_a_decode_of_no_tokens_only_runs_the_prompt() -> None:
    world = World()
    world.program()
    decode = world.do(1, world.alloc(range(8)), world.decode(range(8), PROMPT, 0))[1]
    assert decode.replies == [DecodeChunk(token_ids=[], finish_reason="length")]
    size = len(PROMPT)
    rest = world.do(1, world.decode(range(8), [99], 5, position=size, sampler=GREEDY))[0]
    assert rest.tokens == alone([*PROMPT, 99], 5)
