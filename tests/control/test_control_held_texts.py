"""The texts that a program has in pages."""

from __future__ import annotations

from control_world import MODEL, World

from quire.core import commands as c
from quire.core.ids import ProgramId

PROMPT = list(range(30, 43))
EVERYTHING = 1000


def held(world: World, program: int = 1, max_tokens: int = EVERYTHING) -> list[list[int]]:
    texts = world.controller.held_texts(ProgramId(program), max_tokens)
    assert {(text.model, text.adapter) for text in texts} <= {(MODEL, None)}
    return [list(text.tokens) for text in texts]


def test_a_text_is_what_full_pages_hold_from_the_first_token_on() -> None:
    world = World()
    world.program()
    assert held(world) == []
    (_, decode) = world.do(1, world.alloc(range(8)), world.decode(range(8), PROMPT, 6))
    assert held(world) == [[*PROMPT, *decode.tokens][:16]]
    for page, fill in ((4, 0), (3, 3)):
        world.do(1, c.TruncatePage(id=world.id(), page=page, fill=fill))
    assert held(world) == [PROMPT[:12]]
    assert held(world, program=2) == []


def test_of_texts_with_one_beginning_none_is_told_twice() -> None:
    world = World()
    world.program()
    world.do(1, world.alloc(range(4)), world.decode(range(4), PROMPT[:8], 0))
    for pages, token in ((range(10, 14), 90), (range(20, 24), 91)):
        prompt = [*PROMPT[:8], *[token] * 5]
        world.do(1, world.alloc(pages), world.decode(pages, prompt, 0))
    world.do(1, world.alloc(range(30, 34)), world.decode(range(30, 34), [7] * 4, 0))
    texts = [[*PROMPT[:8], *[90] * 4], [*PROMPT[:8], *[91] * 4], [7] * 4]
    assert sorted(held(world)) == sorted(texts)
    assert held(world, max_tokens=17)[1:] == [[7] * 4], "those that fit, the longest first"
    assert len(held(world, max_tokens=17)) == 2


def test_pages_that_hold_no_plain_text_are_left_out() -> None:
    world = World()
    world.program()
    world.do(1, world.alloc(range(4)), world.decode(range(4), PROMPT[:8], 0))
    world.do(1, c.MaskPage(id=world.id(), page=1, visible=[True, True, True, False]))
    assert held(world) == [PROMPT[:4]]
