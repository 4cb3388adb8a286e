"""Tree of thoughts and Monte Carlo tree search, against plain Python that has neither pages nor
forks: the beam over the oracle of the fake model, UCT over a tree of strings."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from library_run import run
from programs_node import level, node_of

from quire.core.decoding import StopSpec
from quire.core.errors import InvalidArgument, QuireError
from quire.programs.library.answers import GREEDY
from quire.programs.library.reasoning import tree_of_thought as tot
from quire.programs.library.reasoning.mcts import EXPLORATION, SearchNode, search
from quire.programs.sdk import Context, temperature
from quire.testing import FakeTokenizer, expected_decode, expected_logprobs, expected_tokens

TOKENIZER = FakeTokenizer()
LINE_TOKENS = 6
PROMPT = "<|user|>Why?<|end|><|assistant|>"
EOS = TOKENIZER.eos_token_ids


@pytest.fixture(autouse=True)
def short_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake model writes no line ends; its thoughts end by length, so make them short."""
    monkeypatch.setattr(tot, "THOUGHT_TOKENS", LINE_TOKENS)


def lucky(text: str, one_in: int) -> bool:
    """A checker that knows nothing but is always of one mind."""
    return hashlib.sha256(text.encode()).digest()[0] % one_in == 0


def plain_decoding(max_tokens: int) -> tuple[int, ...]:
    stop = StopSpec(max_tokens, token_ids=EOS)
    return tuple(expected_tokens(TOKENIZER.encode(PROMPT), stop))


# -- the reference of tree of thoughts -------------------------------------------------------------

Line = tuple[tuple[int, ...], tuple[float, ...], bool]
"""Tokens so far, their log probabilities, whether the text has ended."""


def reference_line(line: Line, seed: int | None) -> Line:
    before = TOKENIZER.encode(PROMPT) + list(line[0])
    sampler = GREEDY if seed is None else temperature(tot.HEAT, seed=seed)
    stop = StopSpec(LINE_TOKENS, token_ids=EOS, strings=(b"\n",))
    decoded = expected_decode(before, stop, sampler=sampler)
    states = decoded.hidden[len(before) - 1 :]
    logprobs = [
        expected_logprobs(state, token, TOKENIZER.vocab_size, 0).logprob
        for state, token in zip(states, decoded.tokens, strict=True)
    ]
    return (*line[0], *decoded.tokens), (*line[1], *logprobs), isinstance(decoded.matched, int)


def mean(line: Line) -> float:
    return sum(line[1]) / len(line[1])


def reference_search(breadth: int, branching: int, depth: int, one_in: int) -> Line | None:
    beam: list[Line] = [((), (), False)]
    over: list[Line] = []
    for level_ in range(depth):
        lines: list[Line] = []
        for line in beam:
            for child in range(branching):
                new = reference_line(line, None if child == 0 else level_ * 1000 + child)
                if new[0] not in [other[0] for other in lines]:
                    lines.append(new)
        lines.sort(key=mean, reverse=True)
        right = [
            line
            for line in lines
            if line[2] and lucky(TOKENIZER.decode(line[0], skip_special=True), one_in)
        ]
        if right:
            return right[0]
        over += [line for line in lines if line[2]]
        beam = [line for line in lines if not line[2]][:breadth]
        if not beam:
            break
    return max(over, key=mean) if over else None


async def found(
    breadth: int, branching: int, depth: int, one_in: int, page_size: int
) -> tuple[int, ...] | None:
    """The tokens of the program's result on a node; everything it held is free afterwards."""

    async def check(text: str) -> bool:
        return lucky(text, one_in)

    async def main(api: Any) -> list[int] | None:
        async with Context(api) as root:
            root.fill(PROMPT)
            await root.prefill()
            best = await tot.tree_search(
                root, breadth=breadth, branching=branching, depth=depth, check=check
            )
            if best is None:
                return None
            assert best.ctx.tokens == root.tokens + best.tokens
            best.ctx.drop()
            return list(best.tokens)

    async with node_of(page_size, num_blocks=1024) as node:
        result = await node.run(main)
        assert (await level(node))["held"] == 0
    return None if result is None else tuple(result)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize(
    ("breadth", "branching", "depth", "one_in"),
    [(3, 3, 12, 3), (2, 4, 12, 2), (4, 2, 10, 1000), (1, 5, 8, 2), (3, 3, 2, 1)],
)
async def test_the_beam_is_that_of_the_reference(
    breadth: int, branching: int, depth: int, one_in: int, page_size: int
) -> None:
    expected = reference_search(breadth, branching, depth, one_in)
    tokens = await found(breadth, branching, depth, one_in, page_size)
    assert tokens == (None if expected is None else expected[0])


def test_the_reference_meets_every_case() -> None:
    """Results that were accepted, results that were only the likeliest, and none at all."""
    assert reference_search(3, 3, 12, 3) is not None
    assert reference_search(4, 2, 10, 1000) is not None
    assert reference_search(3, 3, 2, 1) is None


@pytest.mark.parametrize("breadth", [1, 3])
async def test_without_branching_it_is_plain_decoding(breadth: int) -> None:
    plain = plain_decoding(400)
    assert plain[-1] in EOS, "the fake model ends this text by itself"
    depth = -(-len(plain) // LINE_TOKENS)
    assert await found(breadth, 1, depth, 1, page_size=4) == plain
    assert await found(breadth, 1, depth - 1, 1, page_size=4) is None


@pytest.mark.parametrize("bounds", [("0", "1", "1"), ("1", "0", "1"), ("1", "1", "0")])
async def test_a_tree_has_some_breadth(bounds: tuple[str, str, str]) -> None:
    with pytest.raises(QuireError, match=r"at least 1|from 1 to"):
        await run("tree_of_thought", "Why?", *bounds)


async def test_a_scripted_thought_is_checked_by_the_model() -> None:
    """Both programs: the answer, and the question that undoes it, asked in a fresh context."""
    asked = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return "Answer: 9<|end|>" if "5 + 4" in prompt else "5-9\nAnswer: 4<|end|>"

    for name in ("tree_of_thought", "mcts"):
        asked.clear()
        result, _, _ = await run(name, "What is 9 - 5?", "1", "1", answer=answer)
        assert (result["answer"], result["text"]) == ("4", "5-9\nAnswer: 4")
        assert any(prompt.startswith("<|user|>What is 5 + 4?<|end|>") for prompt in asked)


# -- the reference of Monte Carlo tree search ------------------------------------------------------


@dataclass
class Textbook:
    """UCT over strings as textbooks write it: tables by state, a recursion, no node objects."""

    width: int
    depth: int
    reward: Callable[[str], float]
    visits: dict[str, int] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    expanded: set[str] = field(default_factory=set)

    def actions(self, state: str) -> list[str]:
        return [] if len(state) == self.depth else [state + "abc"[i] for i in range(self.width)]

    def turn(self, state: str = "") -> float:
        if state not in self.visits or not self.actions(state):
            outcome = self.reward(state)
        elif state not in self.expanded:
            self.expanded.add(state)
            outcome = self.turn(self.actions(state)[0])
        else:
            outcome = self.turn(self.choose(state))
        self.visits[state] = self.visits.get(state, 0) + 1
        self.totals[state] = self.totals.get(state, 0.0) + outcome
        return outcome

    def choose(self, state: str) -> str:
        for action in self.actions(state):
            if action not in self.visits:
                return action
        parent = math.log(self.visits[state])
        bounds = {
            action: self.totals[action] / self.visits[action]
            + EXPLORATION * math.sqrt(parent / self.visits[action])
            for action in self.actions(state)
        }
        return max(bounds, key=lambda action: bounds[action])


def flattened(node: SearchNode[str]) -> dict[str, tuple[int, float]]:
    below = [flattened(child) for child in node.children]
    return {node.state: (node.visits, node.total)} | {k: v for one in below for k, v in one.items()}


async def searched(
    table: Textbook, num_turns: int, enough: float = 2.0
) -> dict[str, tuple[int, float]]:
    async def expand(state: str) -> Sequence[str]:
        return table.actions(state)

    async def play(state: str) -> float:
        return table.reward(state)

    expanding: Callable[[str], Awaitable[Sequence[str]]] = expand
    top = await search("", expand=expanding, play=play, num_turns=num_turns, enough=enough)
    return {state: figures for state, figures in flattened(top).items() if figures[0]}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 5), st.integers(1, 120), st.integers(0, 2**32), st.booleans()
)
async def test_visits_and_rewards_are_those_of_textbook_uct(
    width: int, depth: int, num_turns: int, salt: int, coarse: bool
) -> None:
    def reward(state: str) -> float:
        drawn = hashlib.sha256(f"{salt}/{state}".encode()).digest()[0]
        return float(drawn % 2) if coarse else drawn / 255

    book = Textbook(width, depth, reward)
    for _ in range(num_turns):
        book.turn()
    expected = {state: (book.visits[state], book.totals[state]) for state in book.visits}
    found_ = await searched(Textbook(width, depth, reward), num_turns)
    assert {state: visits for state, (visits, _) in found_.items()} == {
        state: visits for state, (visits, _) in expected.items()
    }
    for state, (_, total) in found_.items():
        assert total == pytest.approx(expected[state][1])


async def test_a_reward_that_is_enough_ends_the_search() -> None:
    table = Textbook(3, 3, lambda state: float(state == "b"))
    figures = await searched(table, 100, enough=1.0)
    assert figures[""] == (3, 1.0)  # the root itself, a, b
    assert sorted(figures) == ["", "a", "b"]


@pytest.mark.parametrize("page_size", [1, 4, 16])
async def test_one_turn_is_plain_decoding(page_size: int) -> None:
    result, _, _ = await run("mcts", "Why?", "1", page_size=page_size)
    plain = TOKENIZER.decode(plain_decoding(256), skip_special=True)
    assert (result["text"], result["num_turns"]) == (plain, 1)


async def test_many_turns_find_other_texts_and_free_what_they_held() -> None:
    """``run`` asserts that no page is held afterwards."""
    result, _, _ = await run("mcts", "Why?", "12", "3", page_size=16)
    assert result["num_turns"] == 12
    assert result["num_texts"] > 4


async def test_a_search_needs_a_turn_and_a_way() -> None:
    for bounds in (("0", "1"), ("1", "0")):
        with pytest.raises(InvalidArgument, match="from 1 to"):
            await run("mcts", "Why?", *bounds)
