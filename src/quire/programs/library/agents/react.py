"""ReAct: reason, act, observe, until there is an answer (Pie Table 2).

    quire run react -- "What is the age of Kabo plus 5?" '{"Kabo": {"age": 31}}' --compare

The whole loop is one text in one context. Generation stops at ``Observation:``; the tool's result
is appended and generation continues, with the KV cache of all earlier text: no turn computes the
conversation again, and none returns to the client.

::

    [system][question][Thought, Action][Observation][Thought, Action][Observation][Answer]
                      └─ generated ───┘└── filled ─┘└─ generated ──┘ one context to the end
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from quire.core.errors import InvalidArgument
from quire.programs.api import Api
from quire.programs.library.agents.calculator import calc
from quire.programs.library.answers import Compare, final_answer, plain_answer
from quire.programs.sdk import Context, inferlet

SYSTEM = "Tools: {tools}. Use Thought, Action, Observation, Answer."
STOP = "Observation:"
MAX_TURNS = 8
TURN_TOKENS = 128
Records = Mapping[str, Mapping[str, object]]
NO_RECORDS: Records = MappingProxyType({})
Action = Callable[[str], Awaitable[str]]
"""A tool of the loop: from the text between the parentheses to the observation."""


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the loop: the model's text, its action, and the observation."""

    text: str
    action: str
    observation: str


Ended = Literal["answered", "no answer", "cut", "out of turns"]
"""``cut``: a turn was longer than ``turn_tokens``, so its end is unknown."""


@dataclass(frozen=True, slots=True)
class ReactResult:
    """``answer``: empty if the model gave none; ``ended``: how the loop ended."""

    answer: str
    steps: tuple[Step, ...]
    ended: Ended


async def react_loop(
    ctx: Context,
    actions: Mapping[str, Action],
    *,
    max_turns: int = MAX_TURNS,
    turn_tokens: int = TURN_TOKENS,
    on_text: Callable[[str], Awaitable[None]] | None = None,
) -> ReactResult:
    """Continue ``ctx``, which ends where the model's turn begins, until the model writes
    ``Answer:``."""
    steps: list[Step] = []
    for _ in range(max_turns):
        generated = await ctx.generate(max_tokens=turn_tokens, stop=STOP)
        if on_text is not None:
            await on_text(generated.text)
        if generated.stop != STOP:
            answer = final_answer(generated.text)
            ended: Ended = "cut" if generated.finish_reason == "length" else "no answer"
            return ReactResult(answer, tuple(steps), "answered" if answer else ended)
        action = last_action(generated.text)
        observation = await perform(action, actions)
        ctx.fill(f" {observation}\n")
        steps.append(Step(generated.text, action, observation))
    return ReactResult("", tuple(steps), "out of turns")


def last_action(text: str) -> str:
    _, mark, action = text.rpartition("Action:")
    return action.partition("\n")[0].strip() if mark else ""


async def perform(action: str, actions: Mapping[str, Action]) -> str:
    """The observation for ``name(arguments)``; errors become observations."""
    call = re.fullmatch(r"(\w+)\((.*)\)", action)
    if call is None or call[1] not in actions:
        return f"error: no such action: {action}"
    try:
        return await actions[call[1]](call[2])
    except InvalidArgument as exc:
        return f"error: {exc.message}"


def lookup_in(table: Mapping[str, Mapping[str, object]]) -> Action:
    """The tool ``lookup(name, key)`` over a table of records."""

    async def lookup(arguments: str) -> str:
        name, _, key = arguments.partition(",")
        return str(table.get(name.strip(), {}).get(key.strip(), "not found"))

    return lookup


async def calculate(expression: str) -> str:
    """The tool ``calc(expression)``."""
    return calc(expression)


@inferlet("react", traits={"Decode": 1, "Messaging": 1, "Tokenize": 1}, restartable=True)
async def react(
    api: Api,
    question: str,
    records: Annotated[Records, 'What it may look up, e.g. {"Kabo": {"age": 31}}'] = NO_RECORDS,
    *,
    compare: Compare = False,
) -> dict[str, object]:
    """Answer a question with a calculator and a table of records (JSON: name, key, value).

    Each step is sent to the client as it happens.
    """
    actions = {"calc": calculate, "lookup": lookup_in(records)}
    system = SYSTEM.format(tools="calc(expression), lookup(name, key)")
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    async with Context(api) as ctx:
        ctx.fill_chat(messages)
        result = await react_loop(ctx, actions, on_text=lambda text: _send(api, text))
    return {
        "answer": result.answer,
        "ended": result.ended,
        **await plain_answer(api, question, compare),
        "steps": [
            {"action": step.action, "observation": step.observation} for step in result.steps
        ],
    }


async def _send(api: Api, text: str) -> None:
    await api.send(text)
