"""Monte Carlo tree search over thoughts: LATS (Zhou 2024) with UCT (Kocsis 2006) over forks.

    quire run mcts -- "What is 89050 - 86826?"

A node is a text; its children are different next lines. Each turn selects a path from the root by
UCT, expands the node at its end if it was visited before, continues one of the new children to the
end (greedily), and adds the reward to every node of the path. Every node holds a fork: pages that
it shares with its parent are stored once, and continuing from it computes nothing of the path
again. The reward is 1 if the model can invert its own answer (``inverse_check``), which ends the
search, and otherwise half the model's confidence in its text. One turn is plain decoding.

::

    select             expand             play                     reward
    root               root               root                     root   +1 visit, +r
     ├ a               ├ a                ├ a                       ├ a   +1 visit, +r
     │ └ (highest UCT) │ └ line ─┬ 1      │ └ line ─┬ 1 ─► ... end  │ └ line  +1 visit, +r
     └ b               └ b       └ 2      └ b       └ 2             └ b
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from quire.programs.api import Api
from quire.programs.library.answers import Count, final_answer
from quire.programs.library.reasoning.inverse_check import undoes
from quire.programs.library.reasoning.tree_of_thought import (
    Thought,
    distinct,
    next_thought,
    text_of,
)
from quire.programs.sdk import Context, inferlet

State = TypeVar("State")
EXPLORATION = math.sqrt(2)
ROLLOUT_TOKENS = 256


@dataclass(eq=False, slots=True)
class SearchNode(Generic[State]):
    """One state of the search. ``total``: the sum of the rewards of its ``visits``."""

    state: State
    parent: SearchNode[State] | None = None
    children: list[SearchNode[State]] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0

    def urgency(self, exploration: float) -> float:
        """UCB1 as seen from the parent: the mean reward, plus a bonus for few visits."""
        if not self.visits or self.parent is None:
            return math.inf
        mean = self.total / self.visits
        return mean + exploration * math.sqrt(math.log(self.parent.visits) / self.visits)

    def add(self, reward: float) -> None:
        """Add ``reward`` to this node and all its ancestors."""
        node: SearchNode[State] | None = self
        while node is not None:
            node.visits += 1
            node.total += reward
            node = node.parent


async def search(
    root: State,
    *,
    expand: Callable[[State], Awaitable[Sequence[State]]],
    play: Callable[[State], Awaitable[float]],
    num_turns: int,
    exploration: float = EXPLORATION,
    enough: float = 1.0,
) -> SearchNode[State]:
    """The root of the tree after ``num_turns``, or after the first reward of at least ``enough``.

    ``expand``: the next states, best first; none if the state is final. Of equally urgent children
    the first is selected.
    """
    top = SearchNode(root)
    for _ in range(num_turns):
        node = top
        while node.children:
            node = max(node.children, key=lambda child: child.urgency(exploration))
        if node.visits:
            node.children = [SearchNode(state, node) for state in await expand(node.state)]
            node = node.children[0] if node.children else node
        reward = await play(node.state)
        node.add(reward)
        if reward >= enough:
            break
    return top


class ThoughtPlay:
    """Expands and plays thoughts for one question; remembers the best text."""

    def __init__(self, api: Api, question: str, width: int) -> None:
        self._api = api
        self._question = question
        self._width = width
        self._num_drawn = 0
        self._rewards: dict[str, float] = {}

    async def expand(self, thought: Thought) -> Sequence[Thought]:
        """Up to ``width`` different next lines, the greedy one first.

        If all draws give the same line, it is taken and the next line is drawn.
        """
        ways = [thought]
        while len(ways) == 1 and not ways[0].finished:
            only = ways[0]
            ways = await self._draw(only)
            if only is not thought:
                only.ctx.drop()
        return [] if ways == [thought] else ways

    async def _draw(self, thought: Thought) -> list[Thought]:
        first = self._num_drawn + 1
        self._num_drawn += self._width - 1
        seeds = (None, *range(first, first + self._width - 1))
        kept, doubles = distinct(
            await asyncio.gather(*(next_thought(thought, seed) for seed in seeds))
        )
        for double in doubles:
            double.ctx.drop()
        return kept

    async def play(self, thought: Thought) -> float:
        """The reward of continuing greedily to the end."""
        tokens, logprobs = thought.tokens, thought.logprobs
        if not thought.finished:
            async with thought.ctx.fork() as ctx:
                rest = await ctx.generate(max_tokens=ROLLOUT_TOKENS, num_logprobs=0)
            tokens += rest.token_ids
            logprobs += tuple(entry.logprob for entry in rest.logprobs or ())
        ended = Thought(thought.ctx, tokens, logprobs, finished=True)
        text = text_of(ended)
        if text not in self._rewards:  # a greedy child ends in the same text as its parent
            right = await undoes(self._api, self._question, final_answer(text))
            self._rewards[text] = 1.0 if right else math.exp(ended.value) / 2
        return self._rewards[text]

    @property
    def num_texts(self) -> int:
        """The number of different finished texts."""
        return len(self._rewards)

    @property
    def first(self) -> str:
        """The first finished text, which is that of plain greedy decoding."""
        return next(iter(self._rewards))

    @property
    def best(self) -> str:
        return max(self._rewards, key=lambda text: self._rewards[text])


@inferlet("mcts", traits={"Decode": 1, "Tokenize": 1}, restartable=True)
async def mcts(api: Api, question: str, num_turns: Count = 32, width: Count = 4) -> dict[str, Any]:
    """Answer a question by Monte Carlo tree search over lines of thought."""
    playing = ThoughtPlay(api, question, width)
    async with Context(api) as ctx:
        ctx.fill_chat([{"role": "user", "content": question}])
        await ctx.prefill()
        top = await search(
            Thought(ctx, (), (), finished=False),
            expand=playing.expand,
            play=playing.play,
            num_turns=num_turns,
        )
        _drop_below(top)
    best = playing.best
    return {
        "answer": final_answer(best),
        "text": best,
        "num_turns": top.visits,
        "num_texts": playing.num_texts,
        "plain": final_answer(playing.first),
    }


def _drop_below(node: SearchNode[Thought]) -> None:
    for child in node.children:
        _drop_below(child)
        child.state.ctx.drop()
