"""Tree of thoughts: a beam over lines of reasoning instead of tokens (Yao 2023, section 3; Pie).

    quire run tree_of_thought -- "What is 89050 - 86826?" --compare

A thought is a line. Each round forks every thought of the beam several times, lets each fork write
its next line, and keeps the best ones: unfinished thoughts by their mean log probability, finished
ones by a checker. The checker here is the model itself, which inverts the answer in a separate
context (``inverse_check``). Forks share the pages of their common text, so a round computes new
lines only. The first fork of a thought is greedy: breadth 1 and branching 1 are plain decoding.

::

    question ─┬─ line a ─┬─ line aa       breadth 2, branching 2: two lines live in each round;
              │          └─ line ab x     what is dropped (x) gives its pages back, what is kept
              └─ line b ─┬─ line ba x     shares the pages of all that led to it
                         └─ line bb ── ends: is it right?
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.library.answers import GREEDY, Compare, Count, final_answer, plain
from quire.programs.library.reasoning.inverse_check import undoes
from quire.programs.sdk import Context, inferlet, temperature

HEAT = 1.0
THOUGHT_TOKENS = 24
"""A longer line is split into several thoughts."""

Check = Callable[[str], Awaitable[bool]]
"""Whether a finished text is right."""


@dataclass(frozen=True, slots=True)
class Thought:
    """A text so far. ``ctx`` ends where the text ends; ``logprobs``: of its own tokens."""

    ctx: Context
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finished: bool

    @property
    def value(self) -> float:
        """The mean log probability of its tokens, as the model's confidence."""
        return sum(self.logprobs) / max(len(self.logprobs), 1)


async def next_thought(parent: Thought, seed: int | None) -> Thought:
    """A fork of ``parent`` with one more line: greedy, or drawn with ``seed``."""
    ctx = parent.ctx.fork()
    sampler = GREEDY if seed is None else temperature(HEAT, seed=seed)
    line = await ctx.generate(max_tokens=THOUGHT_TOKENS, stop="\n", sampler=sampler, num_logprobs=0)
    logprobs = tuple(entry.logprob for entry in line.logprobs or ())
    ended = line.finish_reason == "stop" and line.stop != "\n"
    return Thought(ctx, parent.tokens + line.token_ids, parent.logprobs + logprobs, ended)


async def grown(beam: Sequence[Thought], branching: int, level: int) -> list[Thought]:
    """``branching`` next lines of every thought, generated concurrently; the first of each is
    greedy."""
    seeds = [None, *range(level * 1000 + 1, level * 1000 + branching)]
    return await asyncio.gather(
        *(next_thought(thought, seed) for thought in beam for seed in seeds)
    )


async def tree_search(
    root: Context, *, breadth: int, branching: int, depth: int, check: Check
) -> Thought | None:
    """The first finished thought that ``check`` accepts, else the most likely finished one.

    ``None`` if none has finished within ``depth`` lines. All others are dropped.

    Raises:
        InvalidArgument: a bound below one.
    """
    if min(breadth, branching, depth) < 1:
        raise InvalidArgument(
            f"breadth {breadth}, branching {branching}, depth {depth}: each must be at least 1"
        )
    beam, finished = [Thought(root, (), (), finished=False)], list[Thought]()
    right: list[Thought] = []
    for level in range(depth):
        kept, doubles = distinct(await grown(beam, branching, level))
        _drop(thought for thought in beam if thought.ctx is not root)
        ranked = sorted(kept, key=_value, reverse=True)
        ended = [thought for thought in ranked if thought.finished]
        going = [thought for thought in ranked if not thought.finished]
        beam = going[:breadth]
        _drop([*doubles, *going[breadth:]])
        verdicts = await asyncio.gather(*(check(text_of(thought)) for thought in ended))
        finished += ended
        right = [thought for thought, accepted in zip(ended, verdicts, strict=True) if accepted]
        if right or not beam:
            break
    _drop(beam)
    best = right[0] if right else max(finished, key=_value, default=None)
    _drop(thought for thought in finished if thought is not best)
    return best


def _value(thought: Thought) -> float:
    return thought.value


def text_of(thought: Thought) -> str:
    """The text without the token that ended it."""
    return thought.ctx.model.tokenizer.decode(thought.tokens, skip_special=True)


def distinct(thoughts: Sequence[Thought]) -> tuple[list[Thought], list[Thought]]:
    """The first thought of each text, and the others: equal thoughts would fill the beam with one
    idea."""
    first: dict[tuple[int, ...], Thought] = {}
    for thought in thoughts:
        first.setdefault(thought.tokens, thought)
    kept = list(first.values())
    return kept, [thought for thought in thoughts if first[thought.tokens] is not thought]


def _drop(thoughts: Iterable[Thought]) -> None:
    for thought in thoughts:
        thought.ctx.drop()


@inferlet("tree_of_thought", traits={"Decode": 1, "Tokenize": 1}, restartable=True)
async def tree_of_thought(
    api: Api,
    question: str,
    breadth: Count = 3,
    branching: Count = 3,
    depth: int = 24,
    *,
    compare: Compare = False,
) -> dict[str, Any]:
    """Answer a question by the best of several chains of thought, and count those that were
    checked."""
    checked: list[str] = []

    async def check(text: str) -> bool:
        checked.append(text)
        return await undoes(api, question, final_answer(text))

    async with Context(api) as root:
        root.fill_chat([{"role": "user", "content": question}])
        await root.prefill()
        compared = {}
        if compare:
            greedy = (await plain(root, depth * THOUGHT_TOKENS)).text
            compared = {"plain": final_answer(greedy)}
        best = await tree_search(
            root,
            breadth=breadth,
            branching=branching,
            depth=depth,
            check=check,
        )
        text = "" if best is None else text_of(best)
        if best is not None:
            best.ctx.drop()
    return {
        "answer": final_answer(text),
        "text": text,
        "num_checked": len(checked),
        **compared,
    }
